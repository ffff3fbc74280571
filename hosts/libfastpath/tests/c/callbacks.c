/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* An emulator: the guest's counter is computed, at 1 GHz, scaled and offset, and its clocks are virtual ones, not
 * the host's. */
#define _GNU_SOURCE
#include <fastpath.h>

#include <time.h>

#include "check.h"

#define VIRTUAL_NS 5000000000000ull /* the guest's clocks are ahead of the host's by this */
#define OFFSET 12345u

static fastpath_publisher publisher;
static _Alignas(FASTPATH_PAGE_SIZE) unsigned char page[FASTPATH_PAGE_SIZE];
static int context;

static uint64_t now_ns(clockid_t clock) {
	struct timespec time;
	CHECK(clock_gettime(clock, &time) == 0);
	return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static uint64_t counter(void *given) {
	CHECK(given == &context);
	return now_ns(CLOCK_MONOTONIC_RAW);
}

static int clock_of_guest(void *given, int32_t clock, uint64_t *time_ns) {
	CHECK(given == &context);
	if (clock == CLOCK_TAI)
		return 1; /* this guest has no such clock */
	*time_ns = now_ns(clock) + VIRTUAL_NS;
	return 0;
}

/* Returns a sample of the host, of the two clocks that are required. */
static struct fastpath_sample sample(void) {
	struct fastpath_sample sample = {
	    .size = sizeof sample,
	    .clocks = FASTPATH_CLOCK_BIT(CLOCK_MONOTONIC) | FASTPATH_CLOCK_BIT(CLOCK_REALTIME),
	};
	sample.monotonic.before_cycles = counter(&context);
	clock_of_guest(&context, CLOCK_MONOTONIC, &sample.monotonic.time_ns);
	sample.monotonic.after_cycles = sample.realtime.before_cycles = counter(&context);
	clock_of_guest(&context, CLOCK_REALTIME, &sample.realtime.time_ns);
	sample.realtime.after_cycles = counter(&context);
	return sample;
}

/* Publishes until the guest has been served for a while: how often an anchor is published depends on how steadily
 * this process runs. */
static void serve(int own_samples) {
	const uint64_t timeout_ns = 60000000000u, from_ns = now_ns(CLOCK_MONOTONIC);
	int published = 0, answered = 0;
	uint64_t sec;
	uint32_t nsec;

	while (published <= 10 || answered <= 10) {
		CHECK(now_ns(CLOCK_MONOTONIC) - from_ns < timeout_ns);
		struct timespec pause = {0, 1000000};
		struct fastpath_sample own = sample();
		int result = fastpath_publish(&publisher, own_samples ? &own : NULL);
		CHECK(result >= 0);
		published += result == FASTPATH_PUBLISHED;
		nanosleep(&pause, NULL);
		uint64_t before = now_ns(CLOCK_MONOTONIC) + VIRTUAL_NS;
		uint64_t guest = 2 * now_ns(CLOCK_MONOTONIC_RAW) + OFFSET;
		uint64_t after = now_ns(CLOCK_MONOTONIC) + VIRTUAL_NS;
		if (fastpath_page_read(page, CLOCK_MONOTONIC, guest, &sec, &nsec) == 1) {
			uint64_t read = sec * 1000000000u + nsec;
			CHECK(read + 5000 >= before && read <= after + 5000);
			answered++;
		}
		CHECK(fastpath_page_read(page, CLOCK_TAI, guest, &sec, &nsec) == 0);
	}
}

/* Checks that the page remembers the newest withdrawals, in order, and counts all. */
static void remember(void) {
	enum { MORE = FASTPATH_WITHDRAWALS + 3 };
	struct fastpath_withdrawal last[FASTPATH_WITHDRAWALS + 1];
	uint64_t before, after;

	CHECK(fastpath_page_withdrawals(page, NULL, 0, &before) == 0);
	for (uint32_t i = 0; i < MORE; i++)
		CHECK(fastpath_withdraw(&publisher, FASTPATH_REASON_HOST + i) == 0);
	CHECK(fastpath_page_withdrawals(page, last, FASTPATH_WITHDRAWALS + 1, &after) == FASTPATH_WITHDRAWALS);
	CHECK(after == before + MORE);
	for (uint32_t i = 0; i < FASTPATH_WITHDRAWALS; i++) {
		CHECK(last[i].reason == FASTPATH_REASON_HOST + MORE - FASTPATH_WITHDRAWALS + i);
		CHECK(last[i].reserved == 0);
		CHECK(last[i].ahead_ns == FASTPATH_AHEAD_UNKNOWN || llabs(last[i].ahead_ns) < 1000000);
		CHECK(i == 0 || last[i].boottime_ns >= last[i - 1].boottime_ns);
	}
	CHECK(fastpath_page_withdrawals(page, last, 2, NULL) == 2);
	CHECK(last[1].reason == FASTPATH_REASON_HOST + MORE - 1);
}

/* A host that traps the image's system calls learns from one that the page has no time. */
static void trap(void) {
	struct fastpath_trap trap = {.size = sizeof trap, .clock_id = CLOCK_MONOTONIC, .image_address = 0x10000};
	uint64_t calls[64];

	trap.image = fastpath_image_of(fastpath_host_isa());
	CHECK(fastpath_image_system_calls(trap.image, calls, 64) > 0);
	trap.pc = trap.image_address + calls[0];
	CHECK(fastpath_trapped(&publisher, &trap) == FASTPATH_SEED);
	trap.pc++;
	CHECK(fastpath_trapped(&publisher, &trap) == FASTPATH_LEAVE_ALONE);
}

int main(void) {
	struct fastpath_publisher_options options = {
	    .size = sizeof options,
	    .multiplier = 1u << 17,
	    .fraction_bits = 16,
	    .offset = OFFSET,
	    .read_counter = counter,
	    .read_clock = clock_of_guest,
	    .context = &context,
	};

	for (int own_samples = 0; own_samples < 2; own_samples++) {
		CHECK(fastpath_page_init(page, NULL) == 0);
		CHECK(fastpath_publisher_init(&publisher, page, &options) == 0);
		trap();
		serve(own_samples);
		remember();
	}
	puts("ok");
	return 0;
}
