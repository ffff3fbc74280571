/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Prints the cost of a read of the counter, and of one that a handler answers because PR_SET_TSC forbids it
 * (docs/design/counter-readers.md). x86-64:
 *
 *     cc -O2 crates/code/examples/trapped-counter.c -o /tmp/trapped-counter && /tmp/trapped-counter
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <time.h>
#include <ucontext.h>
#include <x86intrin.h>

enum { RDTSC_SIZE = 2, READS = 1000000 };

static void answer(int number, siginfo_t *info, void *context) {
	ucontext_t *at = context;

	(void)number;
	(void)info;
	at->uc_mcontext.gregs[REG_RAX] = 1;
	at->uc_mcontext.gregs[REG_RDX] = 0;
	at->uc_mcontext.gregs[REG_RIP] += RDTSC_SIZE;
}

static long long now_ns(void) {
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static double cost_ns(void) {
	long long begun = now_ns();

	for (int i = 0; i < READS; i++)
		__rdtsc();
	return (double)(now_ns() - begun) / READS;
}

int main(void) {
	struct sigaction action = {.sa_sigaction = answer, .sa_flags = SA_SIGINFO};
	struct timespec begun, ended;
	double plain = cost_ns();

	if (sigaction(SIGSEGV, &action, NULL) || clock_gettime(CLOCK_MONOTONIC_COARSE, &begun) ||
	    prctl(PR_SET_TSC, PR_TSC_SIGSEGV))
		return 1;
	/* A COARSE clock, since the others read the counter. */
	for (int i = 0; i < READS; i++)
		__rdtsc();
	clock_gettime(CLOCK_MONOTONIC_COARSE, &ended);
	printf("a read: %.1f ns; answered by a handler: %.0f ns\n", plain,
	       ((double)(ended.tv_sec - begun.tv_sec) * 1e9 + (double)(ended.tv_nsec - begun.tv_nsec)) / READS);
	return 0;
}
