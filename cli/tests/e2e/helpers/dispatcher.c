/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* dispatcher: handles its system calls itself (prctl(2), PR_SET_SYSCALL_USER_DISPATCH). It makes none; if one is
 * dispatched nevertheless, it reports that, and ends. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

#ifndef PR_SET_SYSCALL_USER_DISPATCH
#define PR_SET_SYSCALL_USER_DISPATCH 59
#endif

enum { ALLOW, BLOCK };

static volatile char selector = ALLOW;

static void handle(int signal) {
	selector = ALLOW;
	puts("a call that it has not made");
	exit(signal);
}

int main(void) {
	struct sigaction action = {.sa_handler = handle};

	sigaction(SIGSYS, &action, NULL);
	if (prctl(PR_SET_SYSCALL_USER_DISPATCH, 1 /* on */, 0, 0, &selector)) {
		perror("dispatcher");
		return 125;
	}
	puts("ready");
	fflush(stdout);
	selector = BLOCK;
	for (;;) {
	}
}
