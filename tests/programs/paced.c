/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * paced CALLS SPINS: makes CALLS system calls for MONOTONIC with SPINS turns of a loop between two of them, and prints
 * the CPU time in nanoseconds of one call and its loop.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Reads CPU time, so that other programs do not count. */
static double now_ns(void) {
	struct timespec now;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

int main(int argc, char **argv) {
	long calls = argc > 1 ? atol(argv[1]) : 0, spins = argc > 2 ? atol(argv[2]) : 0;
	struct timespec answer;
	double begun = now_ns();

	for (long i = 0; i < calls; i++) {
		syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &answer);
		for (long turn = 0; turn < spins; turn++) {
			__asm__ volatile("");
		}
	}
	printf("%.1f\n", (now_ns() - begun) / (double)calls);
	return 0;
}
