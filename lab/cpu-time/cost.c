/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "cpu-time.h"

#include <stdio.h>
#include <time.h>

enum { ROUNDS = 300, READS = 2000, WAYS = 5 };

static struct cpu_clock by_event, by_rseq;

static void read_once(int way) {
	struct timespec t;

	switch (way) {
	case 0:
		read_counter();
		break;
	case 1:
		clock_gettime(CLOCK_MONOTONIC, &t);
		break;
	case 2:
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
		break;
	case 3:
		cpu_clock_read(&by_event);
		break;
	default:
		cpu_clock_read(&by_rseq);
	}
}

int cost(int argc, char **argv) {
	static const char *const names[WAYS] = {"counter between two fences", "MONOTONIC by libc",
						"THREAD_CPUTIME_ID by libc", "event and counter", "rseq and counter"};
	static double ns[WAYS][ROUNDS], ratio[WAYS][ROUNDS];

	(void)argc, (void)argv;
	if (cpu_clock_init(&by_event, BY_EVENT) || cpu_clock_init(&by_rseq, BY_RSEQ))
		die("the thread's clock");
	for (int round = 0; round < ROUNDS; round++) {
		for (int way = 0; way < WAYS; way++) {
			uint64_t start = wall_ns();

			for (int i = 0; i < READS; i++)
				read_once(way);
			ns[way][round] = (double)(wall_ns() - start) / READS;
		}
		for (int way = 0; way < WAYS; way++)
			ratio[way][round] = ns[2][round] / ns[way][round];
	}
	printf("%-28s %10s %10s %10s  %s\n", "a read", "median ns", "5 %", "95 %", "THREAD_CPUTIME_ID against it");
	for (int way = 0; way < WAYS; way++)
		printf("%-28s %10.1f %10.1f %10.1f  %.1fx\n", names[way], quantile(ns[way], ROUNDS, 0.5),
		       quantile(ns[way], ROUNDS, 0.05), quantile(ns[way], ROUNDS, 0.95),
		       quantile(ratio[way], ROUNDS, 0.5));
	return 0;
}
