/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "bench.h"

#include "cpu.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int by_value(const void *a, const void *b) {
	const double *left = a, *right = b;

	return (*left > *right) - (*left < *right);
}

double median_of(const double *values, int count) {
	double sorted[MOST_ROUNDS];

	memcpy(sorted, values, (size_t)count * sizeof(*values));
	qsort(sorted, (size_t)count, sizeof(*sorted), by_value);
	return sorted[count / 2];
}

double least_of(const double *values, int count) {
	double least = values[0];

	for (int i = 1; i < count; i++)
		if (values[i] < least)
			least = values[i];
	return least;
}

double mean_of(const double *values, int count) {
	double sum = 0;

	for (int i = 0; i < count; i++)
		sum += values[i];
	return sum / count;
}

struct scale start_scale(void) {
	struct scale scale;

	scale.count = read_counter();
	syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &scale.time);
	return scale;
}

double ns_per_count(const struct scale *started) {
	const struct scale now = start_scale();
	const double seconds = (double)(now.time.tv_sec - started->time.tv_sec);

	return (seconds * 1e9 + (double)(now.time.tv_nsec - started->time.tv_nsec)) /
	       (double)(now.count - started->count);
}

void stay_here(void) {
	cpu_set_t here;

	CPU_ZERO(&here);
	CPU_SET(sched_getcpu(), &here);
	sched_setaffinity(0, sizeof(here), &here);
}

int has_option(char **argv, const char *option) {
	while (*++argv)
		if (strcmp(*argv, option) == 0)
			return 1;
	return 0;
}
