/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * An NTP server whose time cannot be steered: it follows MONOTONIC_RAW from its start, with a jump at intervals.
 *
 *   ntp-server PORT SECONDS OFFSET_MS...
 *
 * It agrees with REALTIME when it starts; after each SECONDS it is off by the next OFFSET_MS, and starts over after the
 * last. So a client slews the machine's clock again and again. It listens on 127.0.0.1 only.
 */
#include "clocks.h"

#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

/* RFC 5905, figure 8. Times are in seconds since 1900 and in units of 2^-32 seconds. */
struct packet {
	uint8_t flags, stratum, poll;
	int8_t precision;
	uint32_t root_delay, root_dispersion;
	char reference[4];
	uint32_t reference_time[2], origin_time[2], receive_time[2], transmit_time[2];
};

static const long long seconds_to_1970 = 2208988800LL;

static long long base_ns, raw_base_ns;
static long long every_ns;
static char **offsets_ms;
static int offset_count;

static long long now_ns(void) {
	long long since_ns = read_syscall_ns(ID_MONOTONIC_RAW) - raw_base_ns;
	long long turn = since_ns / every_ns;
	long long offset_ms = turn ? atoll(offsets_ms[(turn - 1) % offset_count]) : 0;

	return base_ns + since_ns + offset_ms * 1000000;
}

static void store(uint32_t *to, long long ns) {
	to[0] = htonl((uint32_t)(ns / 1000000000 + seconds_to_1970));
	to[1] = htonl((uint32_t)((unsigned long long)(ns % 1000000000) * (1ULL << 32) / 1000000000));
}

static void answer(struct packet *packet, long long received_ns) {
	unsigned int version = packet->flags >> 3 & 7;

	memcpy(packet->origin_time, packet->transmit_time, sizeof(packet->origin_time));
	/* No leap second announced; a server. */
	packet->flags = (uint8_t)(version << 3 | 4);
	packet->stratum = 1;
	packet->precision = -20;
	packet->root_delay = 0;
	packet->root_dispersion = htonl(1);
	memcpy(packet->reference, "PPS", 4);
	store(packet->reference_time, received_ns);
	store(packet->receive_time, received_ns);
	store(packet->transmit_time, now_ns());
}

int main(int argc, char **argv) {
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int server = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	if (argc < 4 || atoi(argv[2]) < 1) {
		fputs("usage: ntp-server PORT SECONDS OFFSET_MS...\n", stderr);
		return 2;
	}
	address.sin_port = htons((uint16_t)atoi(argv[1]));
	every_ns = atoll(argv[2]) * 1000000000;
	offsets_ms = argv + 3;
	offset_count = argc - 3;
	raw_base_ns = read_syscall_ns(ID_MONOTONIC_RAW);
	base_ns = read_syscall_ns(ID_REALTIME);
	if (server < 0 || bind(server, (struct sockaddr *)&address, sizeof(address))) {
		perror("ntp-server");
		return 2;
	}
	for (;;) {
		struct sockaddr_in client;
		socklen_t length = sizeof(client);
		struct packet packet;
		ssize_t size = recvfrom(server, &packet, sizeof(packet), 0, (struct sockaddr *)&client, &length);

		if (size == (ssize_t)sizeof(packet) && (packet.flags & 7) == 3) {
			answer(&packet, now_ns());
			sendto(server, &packet, sizeof(packet), 0, (struct sockaddr *)&client, length);
		}
	}
}
