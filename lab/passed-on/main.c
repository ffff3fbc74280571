/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * passed-on: what a call costs more that fastpath passes on to the kernel's function, such as a read of a COARSE
 * clock, by the ways of paths.S. Interleaved rounds; the differences are taken within a round.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { PATHS = 6, ROUNDS = 400, CALLS = 4000, ID_COARSE = 6 };

typedef int path(int id, struct timespec *ts);
extern path path_kernel, path_jumps, path_fastpath, path_direct, path_test_in_thunk, path_copy;

static const struct {
	const char *name;
	path *call;
} paths[PATHS] = {
    {"the kernel's function alone", path_kernel},
    {"a jump there and back", path_jumps},
    {"as fastpath has it", path_fastpath},
    {"... without the jump through the slot", path_direct},
    {"... and the test in the thunk", path_test_in_thunk},
    {"... and a copy of the kernel's code", path_copy},
};

static double now_ns(void) {
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC_RAW, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int compare(const void *a, const void *b) {
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *values) {
	qsort(values, ROUNDS, sizeof *values, compare);
	return values[ROUNDS / 2];
}

int main(void) {
	static double ns[PATHS][ROUNDS], more[PATHS][ROUNDS];
	struct timespec ts;

	for (int round = 0; round < ROUNDS; round++) {
		for (int i = 0; i < PATHS; i++) {
			double start = now_ns();

			for (int call = 0; call < CALLS; call++)
				paths[i].call(ID_COARSE, &ts);
			ns[i][round] = (now_ns() - start) / CALLS;
			more[i][round] = ns[i][round] - ns[0][round];
		}
	}
	printf("%-40s %6s %6s\n", "medians", "ns", "more");
	for (int i = 0; i < PATHS; i++)
		printf("%-40s %6.2f %+6.2f\n", paths[i].name, median(ns[i]), median(more[i]));
	return 0;
}
