// SPDX-License-Identifier: Apache-2.0 OR MIT
// connects SOCKET: 2,000 threads connect to a socket, and close the connection, until this is killed.
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static struct sockaddr_un address = {.sun_family = AF_UNIX};

static void *connect_and_close(void *unused) {
	for (;;) {
		int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
		(void)connect(fd, (struct sockaddr *)&address, sizeof(address));
		close(fd);
	}
	return unused;
}

int main(int count, char **arguments) {
	if (count != 2 || strlen(arguments[1]) >= sizeof(address.sun_path))
		return 2;
	memcpy(address.sun_path, arguments[1], strlen(arguments[1]));
	pthread_attr_t small;
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 1 << 16);
	// A control group may limit the number of tasks.
	pthread_t thread;
	for (int i = 0; i < 2000 && !pthread_create(&thread, &small, connect_and_close, NULL); i++)
		;
	puts("begun");
	fflush(stdout);
	pause();
	return 0;
}
