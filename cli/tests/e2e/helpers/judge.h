/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The common part of the programs that are attached again and again: threads that check the clocks, and a count of each
 * kind of work. Each program prints "ready", then a line for each error (the first few), and at SIGTERM a line for each
 * kind of work that was never done, and "done". */
#ifndef JUDGE_H
#define JUDGE_H

#include "../../../../tests/programs/clock-lock.h"
#include "../../../../tests/programs/clocks.h"
#include "../../../../tests/programs/findings.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

enum { NS_PER_MS = 1000000, MOST_KINDS = 16, MOST_LINES = 10, NOT_ON_THIS_KERNEL = 125 };

static atomic_int is_over, wrongs;

/* Reports an error. */
static inline void wrong(const char *what, long long value) {
	if (atomic_fetch_add(&wrongs, 1) < MOST_LINES) {
		printf("%s: %lld\n", what, value);
		fflush(stdout);
	}
}

static inline void expect(int holds, const char *what, long long value) {
	if (!holds) {
		wrong(what, value);
	}
}

/* A kind of work, and how often it was done. */
struct work {
	const char *name;
	_Atomic unsigned long long times;
};

static struct work works[MOST_KINDS];
static int work_count;

/* Must be called before the threads are started. */
static inline struct work *kind_of_work(const char *name) {
	if (work_count == MOST_KINDS) {
		abort();
	}
	works[work_count].name = name;
	return &works[work_count++];
}

/* The latest times that any thread has read, of CLOCK_REALTIME and CLOCK_MONOTONIC. */
static _Atomic long long latest_ns[2];
static struct work *clock_reads;

/* Reads both clocks; neither may be earlier than a read before it by any thread. Returns CLOCK_MONOTONIC. */
static inline long long judge_clocks(void) {
	long long now = 0;

	for (int id = ID_REALTIME; id <= ID_MONOTONIC; id++) {
		long long seen = atomic_load_explicit(&latest_ns[id], memory_order_acquire);

		now = read_libc_ns(id);
		expect(now >= seen, id == ID_MONOTONIC ? "MONOTONIC went back, in ns" : "REALTIME went back, in ns",
		       seen - now);
		pass_on(&latest_ns[id], seen, now);
	}
	clock_reads->times++;
	return now;
}

static inline void nap_ns(long ns) {
	const struct timespec nap = {0, ns};
	long long begun = read_syscall_ns(ID_MONOTONIC);

	expect(nanosleep(&nap, NULL) == 0, "a sleep failed, errno", errno);
	expect(read_syscall_ns(ID_MONOTONIC) - begun >= ns, "a sleep was too short, ns", ns);
}

/* A thread: reads the clocks, mostly at full speed. */
static inline void *judge_clocks_always(void *unused) {
	while (!is_over) {
		for (int i = 0; i < 2000; i++) {
			judge_clocks();
		}
		nap_ns(NS_PER_MS);
	}
	return unused;
}

static inline pthread_t start_thread(void *(*run)(void *), void *argument, const pthread_attr_t *attributes) {
	pthread_t thread;
	int error = pthread_create(&thread, attributes, run, argument);

	if (error) {
		errno = error;
		perror("pthread_create");
		exit(NOT_ON_THIS_KERNEL);
	}
	return thread;
}

/* Must be called first. SIGTERM is blocked in all threads: see [until_the_end]. */
static inline void begin(void) {
	sigset_t end;

	lock_machine_clock(LOCK_SH);
	clock_reads = kind_of_work("clock reads");
	sigemptyset(&end);
	sigaddset(&end, SIGTERM);
	pthread_sigmask(SIG_BLOCK, &end, NULL);
}

static inline void say(const char *word) {
	puts(word);
	fflush(stdout);
}

/* Waits for SIGTERM; returns any other signal that is in `others`. */
static inline int until_the_end(const sigset_t *others) {
	sigset_t set;
	int signal;

	sigemptyset(&set);
	if (others) {
		set = *others;
	}
	sigaddset(&set, SIGTERM);
	expect(sigwait(&set, &signal) == 0, "sigwait failed, errno", errno);
	is_over = signal == SIGTERM;
	return signal;
}

/* Reports the work that was never done; returns the exit status. */
static inline int verdict(void) {
	for (int i = 0; i < work_count; i++) {
		if (works[i].times == 0) {
			printf("never: %s\n", works[i].name);
		}
	}
	say("done");
	return wrongs != 0;
}

#endif
