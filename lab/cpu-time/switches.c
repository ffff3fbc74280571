/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "cpu-time.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <unistd.h>

enum { ROUNDS = 15, TRIPS = 20000, CASES = 3, DISABLED_AFTER_US = 1200000 };

static int there[2], back[2];
static int has_event;

static void *answer_trips(void *argument) {
	volatile struct perf_event_mmap_page *page = has_event ? map_event() : NULL;
	char byte;

	for (int i = 0; i < TRIPS; i++) {
		if (read(there[0], &byte, 1) != 1 || write(back[1], &byte, 1) != 1)
			die("pipe");
	}
	if (page)
		unmap_event(page);
	return argument;
}

/* Returns nanoseconds of a switch: a trip is two, and four system calls. */
static double switch_ns(void) {
	volatile struct perf_event_mmap_page *page = has_event ? map_event() : NULL;
	pthread_t thread;
	char byte = 0;

	if (pthread_create(&thread, NULL, answer_trips, NULL))
		die("pthread_create");
	usleep(1000);
	uint64_t start = wall_ns();

	for (int i = 0; i < TRIPS; i++) {
		if (write(there[1], &byte, 1) != 1 || read(back[0], &byte, 1) != 1)
			die("pipe");
	}
	double ns = (double)(wall_ns() - start) / TRIPS / 2;

	pthread_join(thread, NULL);
	if (page)
		unmap_event(page);
	return ns;
}

static void *sleep_with_event(void *is_over) {
	volatile struct perf_event_mmap_page *page = map_event();

	if (!page)
		die("the thread's event");
	while (!__atomic_load_n((int *)is_over, __ATOMIC_RELAXED))
		usleep(1000);
	unmap_event(page);
	return NULL;
}

int switches(int argc, char **argv) {
	static const char *const names[CASES] = {"no event", "an event of a third thread", "events of both threads"};
	static double ns[CASES][ROUNDS], ratio[CASES][ROUNDS];
	cpu_set_t set;

	(void)argc, (void)argv;
	CPU_ZERO(&set);
	CPU_SET(0, &set);
	if (sched_setaffinity(0, sizeof set, &set) || pipe(there) || pipe(back))
		die("the two threads");
	for (int round = 0; round < ROUNDS; round++) {
		int is_over = 0;
		pthread_t third;

		/* The kernel switches its hooks off a second after the last event (perf_sched_delayed). */
		usleep(DISABLED_AFTER_US);
		has_event = 0;
		ns[0][round] = switch_ns();
		if (pthread_create(&third, NULL, sleep_with_event, &is_over))
			die("pthread_create");
		usleep(10000);
		ns[1][round] = switch_ns();
		has_event = 1;
		ns[2][round] = switch_ns();
		__atomic_store_n(&is_over, 1, __ATOMIC_RELAXED);
		pthread_join(third, NULL);
		for (int i = 0; i < CASES; i++)
			ratio[i][round] = ns[i][round] / ns[0][round];
	}
	printf("%-28s %10s %10s  %s\n", "a switch, by pipe", "median ns", "5 %", "against no event");
	for (int i = 0; i < CASES; i++)
		printf("%-28s %10.0f %10.0f  %.3fx\n", names[i], quantile(ns[i], ROUNDS, 0.5),
		       quantile(ns[i], ROUNDS, 0.05), quantile(ratio[i], ROUNDS, 0.5));
	return 0;
}
