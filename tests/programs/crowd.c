/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * crowd: threads as in a server, and one that notices when it did not run.
 *
 *   crowd [-t THREADS]
 *
 * Of 100 threads (or THREADS), one only reads the system's clock, every 100 us; a third of the threads waits in
 * epoll_wait for an event that never comes, a third on a futex; the others sleep a millisecond and read a clock, again
 * and again. For each line of input, the program prints the longest time in microseconds, since the line before,
 * between two reads of the first thread.
 */
#include "clocks.h"

#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>

static _Atomic long long longest_ns;
static volatile long long read_last;

static void *look(void *unused) {
	const struct timespec pause = {0, 100000};
	long long last_ns = read_syscall_ns(ID_MONOTONIC);

	for (;;) {
		long long now_ns = read_syscall_ns(ID_MONOTONIC);
		long long longest = atomic_load_explicit(&longest_ns, memory_order_relaxed);

		while (now_ns - last_ns > longest &&
		       !atomic_compare_exchange_weak(&longest_ns, &longest, now_ns - last_ns)) {
		}
		last_ns = now_ns;
		nanosleep(&pause, NULL);
	}
	return unused;
}

static void *wait_for_event(void *unused) {
	struct epoll_event event;
	int epoll = epoll_create1(EPOLL_CLOEXEC);

	while (epoll_wait(epoll, &event, 1, -1)) {
	}
	return unused;
}

static void *wait_for_turn(void *unused) {
	unsigned int word = 0;

	for (;;) {
		syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
	}
	return unused;
}

static void *work(void *unused) {
	const struct timespec pause = {0, 1000000};

	for (;;) {
		nanosleep(&pause, NULL);
		read_last = read_libc_ns(ID_MONOTONIC);
	}
	return unused;
}

int main(int argc, char **argv) {
	static void *(*const bodies[])(void *) = {work, wait_for_event, wait_for_turn};
	int threads = 100, option;
	char line[16];
	pthread_t thread;

	while ((option = getopt(argc, argv, "t:")) != -1) {
		if (option == 't') {
			threads = atoi(optarg);
		}
		if (option != 't' || threads < 2) {
			fputs("usage: crowd [-t THREADS]\n", stderr);
			return 2;
		}
	}
	/* The main thread, which reads the lines, is one of them. */
	for (int i = 0; i < threads - 1; i++) {
		if (pthread_create(&thread, NULL, i == 0 ? look : bodies[i % 3], NULL)) {
			perror("crowd: a thread");
			return 2;
		}
	}
	while (fgets(line, sizeof(line), stdin)) {
		printf("%.1f\n", (double)atomic_exchange(&longest_ns, 0) / 1e3);
		fflush(stdout);
	}
	_exit(0);
}
