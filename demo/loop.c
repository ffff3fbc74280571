/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * loop COUNT [--wait]: reads CLOCK_MONOTONIC COUNT times and prints nanoseconds per read. An ordinary program, without
 * any knowledge of fastpath.
 *
 * --wait: lets any process trace it, prints `ready`, and begins when it reads a line.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

static double read_ns(void) {
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

int main(int argc, char **argv) {
	long count = argc > 1 ? atol(argv[1]) : 0;
	double first_ns, last_ns = 0;

	if (count < 2) {
		fputs("usage: loop COUNT [--wait]\n", stderr);
		return 2;
	}
	if (argc > 2 && strcmp(argv[2], "--wait") == 0) {
		prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
		puts("ready");
		fflush(stdout);
		getchar();
	}
	first_ns = read_ns();
	for (long i = 1; i < count; i++) {
		last_ns = read_ns();
	}
	printf("%.2f\n", (last_ns - first_ns) / (double)(count - 1));
	return 0;
}
