/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* What benchmarks share: figures of many rounds, and the counter's scale. */
#ifndef BENCH_H
#define BENCH_H

#include <stdint.h>
#include <time.h>

enum { MOST_ROUNDS = 401 };

/* Of at most MOST_ROUNDS values. */
double median_of(const double *values, int count);
double least_of(const double *values, int count);
double mean_of(const double *values, int count);

/* The counter and the kernel's CLOCK_MONOTONIC at the start of a measurement. */
struct scale {
	uint64_t count;
	struct timespec time;
};

struct scale start_scale(void);
/* Returns the nanoseconds of one count, by the time since the start. */
double ns_per_count(const struct scale *started);

/* Pins the guest to one CPU, so that it does not migrate between two kinds. Its tracer runs elsewhere if it can. */
void stay_here(void);

int has_option(char **argv, const char *option);

#endif
