/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* waiters THREADS: threads that wait in epoll_wait for an event that never comes. Prints `ready` when all of them wait,
 * and ends with 3 if a wait ends. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

static _Atomic int started;

static void *wait_for_event(void *unused) {
	struct epoll_event event;
	int epoll = epoll_create1(EPOLL_CLOEXEC);

	started++;
	epoll_wait(epoll, &event, 1, -1);
	perror("epoll_wait");
	_exit(3);
	return unused;
}

int main(int argc, char **argv) {
	int threads = argc > 1 ? atoi(argv[1]) : 1;
	pthread_t thread;

	for (int i = 0; i < threads; i++) {
		if (pthread_create(&thread, NULL, wait_for_event, NULL)) {
			return 2;
		}
	}
	while (started < threads) {
		usleep(1000);
	}
	puts("ready");
	fflush(stdout);
	for (;;) {
		pause();
	}
}
