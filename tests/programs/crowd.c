/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * crowd: threads as in a server, and one that notices when it did not run.
 *
 *   crowd [-t THREADS] [-w WAY]
 *
 * Of 100 threads (or THREADS), one only reads the system's clock, every 100 us; a third of the threads waits in
 * epoll_wait for an event that never comes, a third on a futex; the others sleep a millisecond and read a clock, again
 * and again. With WAY other than `mixed`, all of them do one thing: `epoll` and `futex` wait, `sleep` sleeps and reads,
 * `busy` only reads. For each line of input, the program prints the longest time in microseconds, since the line
 * before, between two reads of the first thread.
 */
#include "clocks.h"

#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

static void *read_on(void *unused) {
	for (;;) {
		read_last = read_libc_ns(ID_MONOTONIC);
	}
	return unused;
}

typedef void *body(void *);

static const struct {
	const char *name;
	body *bodies[3];
} ways[] = {
    {"mixed", {work, wait_for_event, wait_for_turn}},
    {"epoll", {wait_for_event, wait_for_event, wait_for_event}},
    {"futex", {wait_for_turn, wait_for_turn, wait_for_turn}},
    {"sleep", {work, work, work}},
    {"busy", {read_on, read_on, read_on}},
};

/* Returns what the threads do in this way; NULL if there is no such way. */
static body *const *bodies_of(const char *name) {
	for (size_t i = 0; i < sizeof(ways) / sizeof(*ways); i++) {
		if (!strcmp(ways[i].name, name)) {
			return ways[i].bodies;
		}
	}
	return NULL;
}

int main(int argc, char **argv) {
	body *const *bodies = ways[0].bodies;
	int threads = 100, option;
	char line[16];
	pthread_t thread;

	while ((option = getopt(argc, argv, "t:w:")) != -1) {
		if (option == 't') {
			threads = atoi(optarg);
		}
		if (option == 'w') {
			bodies = bodies_of(optarg);
		}
		if (option == '?' || threads < 2 || !bodies) {
			fputs("usage: crowd [-t THREADS] [-w mixed|epoll|futex|sleep|busy]\n", stderr);
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
