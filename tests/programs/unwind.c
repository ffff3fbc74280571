/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * unwind: prints how many callers a signal handler sees that interrupts a waiting system call, and whether a thread
 * that waits in one can be cancelled, as `callers N` and `cancelled`.
 */
#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

static int ends[2];
static volatile int callers;

static void handler(int signal) {
	void *frames[64];

	(void)signal;
	callers = backtrace(frames, 64);
}

__attribute__((noinline)) static ssize_t wait_for_byte(void) {
	char byte;
	ssize_t n = read(ends[0], &byte, 1);

	__asm__ volatile("" ::: "memory");
	return n;
}

static void *wait_in_thread(void *unused) {
	(void)unused;
	wait_for_byte();
	return NULL;
}

int main(void) {
	struct sigaction action = {.sa_handler = handler};
	pthread_t thread;
	void *result;

	if (pipe(ends)) {
		return 1;
	}
	handler(0); /* loads the unwinder */
	sigaction(SIGALRM, &action, NULL);
	ualarm(100000, 0);
	wait_for_byte();
	printf("callers %d\n", callers);

	pthread_create(&thread, NULL, wait_in_thread, NULL);
	usleep(50000);
	pthread_cancel(thread);
	pthread_join(thread, &result);
	puts(result == PTHREAD_CANCELED ? "cancelled" : "not cancelled");
	return 0;
}
