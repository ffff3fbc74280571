/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * price: what a call costs here, by libc, and what a bare read of the counter costs. Prints one line of JSON,
 * nanoseconds.
 *
 * Each figure is the cheapest of many short rounds: whatever else the machine does only makes a round dearer.
 */
#include "clocks.h"

#include <stdio.h>

enum { ROUNDS = 150, CALLS = 2000 };

/* The ruler is the kernel's own answer, whatever serves the calls that are measured. */
static double now_ns(void) { return (double)read_syscall_ns(ID_MONOTONIC); }

static inline void read_counter(void) {
#if defined(__x86_64__)
	__asm__ volatile("lfence; rdtsc" ::: "eax", "edx", "memory");
#elif defined(__aarch64__)
	__asm__ volatile("isb; mrs x0, cntvct_el0" ::: "x0", "memory");
#else
#error "which counter?"
#endif
}

static void call(int id) {
	struct timespec t;
	struct timeval tv;

	switch (id) {
	case ID_GETTIMEOFDAY:
		gettimeofday(&tv, NULL);
		break;
	case ID_TIME:
		time(NULL);
		break;
	default:
		clock_gettime(id, &t);
	}
}

static double cheapest_ns(int id) {
	double cheapest = 1e9;

	for (int round = 0; round < ROUNDS; round++) {
		double start = now_ns();

		for (int i = 0; i < CALLS; i++) {
			call(id);
		}
		double each = (now_ns() - start) / CALLS;

		cheapest = each < cheapest ? each : cheapest;
	}
	return cheapest;
}

static double cheapest_counter_ns(void) {
	double cheapest = 1e9;

	for (int round = 0; round < ROUNDS; round++) {
		double start = now_ns();

		for (int i = 0; i < CALLS; i++) {
			read_counter();
		}
		double each = (now_ns() - start) / CALLS;

		cheapest = each < cheapest ? each : cheapest;
	}
	return cheapest;
}

int main(void) {
	printf("{\"counter\":%.1f", cheapest_counter_ns());
	for (size_t i = 0; i < CLOCK_NAMES; i++) {
		printf(",\"%s\":%.1f", clock_names[i].name, cheapest_ns(clock_names[i].id));
	}
	puts("}");
	return 0;
}
