/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * cpu-time: the experiment of docs/design/cpu-time.md.
 *
 *     cpu-time cost            the cost of a read, beside the system call and the kernel's vDSO
 *     cpu-time error SECONDS   the error and the monotonicity against the kernel's own answers, under load
 *     cpu-time switches        the cost of a context switch with and without events
 *     cpu-time threads         the cost of an event for each thread
 *     cpu-time limits          how many events an unprivileged process can map
 *     cpu-time life            whether fork, exec, sleeps and preemption are detected
 */
#include "cpu-time.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

uint64_t wall_ns(void) {
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC_RAW, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static int compare(const void *a, const void *b) {
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

double quantile(double *values, size_t count, double fraction) {
	qsort(values, count, sizeof *values, compare);
	return values[(size_t)(fraction * (double)(count - 1))];
}

void die(const char *what) {
	perror(what);
	exit(1);
}

int main(int argc, char **argv) {
	static const struct {
		const char *name;
		int (*run)(int argc, char **argv);
	} parts[] = {
	    {"cost", cost},       {"error", error},   {"switches", switches},
	    {"threads", threads}, {"limits", limits}, {"life", life},
	};

	measure_rate();
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
		if (argc > 1 && strcmp(argv[1], parts[i].name) == 0)
			return parts[i].run(argc, argv);
	}
	fputs("usage: cpu-time cost | error SECONDS | switches | threads | limits | life\n", stderr);
	return 2;
}
