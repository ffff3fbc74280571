/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * cost: measures the cost of a call by libc, and of a bare read of the counter. Prints one line of JSON, in
 * nanoseconds.
 *
 * Each figure is the minimum of many short rounds: other load on the machine only makes a round more expensive. A round
 * of expensive calls has fewer of them.
 */
#include "clocks.h"

#include <stdio.h>

enum { ROUNDS = 150, MOST_CALLS = 2000, LEAST_CALLS = 20, ROUND_NS = 2000000 };

/* The reference is the kernel's own answer, independent of what serves the measured calls. */
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

static double average_ns(int id, int calls) {
	double start = now_ns();

	for (int i = 0; i < calls; i++) {
		call(id);
	}
	return (now_ns() - start) / calls;
}

static double cheapest_ns(int id) {
	double cheapest = 1e9;

	for (int round = 0; round < ROUNDS; round++) {
		int calls = (int)(ROUND_NS / (cheapest + 1));

		calls = calls < LEAST_CALLS ? LEAST_CALLS : calls > MOST_CALLS ? MOST_CALLS : calls;
		double each = average_ns(id, calls);

		cheapest = each < cheapest ? each : cheapest;
	}
	return cheapest;
}

static double cheapest_counter_ns(void) {
	double cheapest = 1e9;

	for (int round = 0; round < ROUNDS; round++) {
		double start = now_ns();

		for (int i = 0; i < MOST_CALLS; i++) {
			read_counter();
		}
		double each = (now_ns() - start) / MOST_CALLS;

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
