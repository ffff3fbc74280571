/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * stall-detector: reads a clock until SIGUSR1, while a timer's signals interrupt the thread, whose handler unwinds by
 * backtrace(), as stall detectors do. Prints the stacks of the last signals, from the interrupted instruction on, each
 * as addresses in a line, and then /proc/self/maps.
 */
#include <execinfo.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <ucontext.h>

enum { STACKS = 1000, DEPTH = 32, INTERVAL_NS = 1000000 };

static void *stacks[STACKS][DEPTH];
static volatile unsigned count;
static volatile sig_atomic_t has_ended;

static void end(int signal) {
	(void)signal;
	has_ended = 1;
}

static void detect(int signal, siginfo_t *info, void *context) {
	void *pc = (void *)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
	void *found[DEPTH];
	int depth = backtrace(found, DEPTH), first = 0;

	(void)signal;
	(void)info;
	while (first < depth && found[first] != pc)
		first++;
	memset(stacks[count % STACKS], 0, sizeof stacks[0]);
	stacks[count % STACKS][0] = pc;
	if (first < depth)
		memcpy(stacks[count % STACKS], found + first, (size_t)(depth - first) * sizeof *found);
	count++;
}

int main(void) {
	struct sigaction action = {.sa_sigaction = detect, .sa_flags = SA_SIGINFO | SA_RESTART};
	struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN};
	struct itimerspec interval = {{0, INTERVAL_NS}, {0, INTERVAL_NS}}, none = {{0, 0}, {0, 0}};
	struct timespec now;
	void *loaded[1];
	timer_t timer;
	char line[512];
	FILE *maps;

	/* Loads the unwinder. */
	backtrace(loaded, 1);
	sigaction(SIGRTMIN, &action, NULL);
	signal(SIGUSR1, end);
	if (timer_create(CLOCK_MONOTONIC, &event, &timer) || timer_settime(timer, 0, &interval, NULL))
		return 1;
	while (!has_ended)
		clock_gettime(CLOCK_MONOTONIC, &now);
	timer_settime(timer, 0, &none, NULL);
	for (unsigned i = 0; i < count && i < STACKS; i++) {
		for (int j = 0; j < DEPTH && stacks[i][j]; j++)
			printf("%lx ", (unsigned long)(uintptr_t)stacks[i][j]);
		puts("");
	}
	maps = fopen("/proc/self/maps", "r");
	while (maps && fgets(line, sizeof line, maps))
		fputs(line, stdout);
	return 0;
}
