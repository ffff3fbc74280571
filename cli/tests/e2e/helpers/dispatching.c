/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* dispatching: makes calls that its own handler answers (prctl(2), PR_SET_SYSCALL_USER_DISPATCH), all the time. It ends
 * at an answer that is not the handler's, and at a call that it has not made. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <ucontext.h>
#include <unistd.h>

#ifndef PR_SET_SYSCALL_USER_DISPATCH
#define PR_SET_SYSCALL_USER_DISPATCH 59
#endif

enum { ALLOW, BLOCK };
enum { CALL = 4321, ANSWER = 1234 };

static volatile char selector = ALLOW;

static void handle(int signal, siginfo_t *info, void *context) {
	ucontext_t *interrupted = context;

	(void)signal;
	selector = ALLOW;
	if (info->si_syscall != CALL) {
		puts("a call that it has not made");
		exit(1);
	}
	interrupted->uc_mcontext.gregs[REG_RAX] = ANSWER;
}

int main(void) {
	struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO};

	sigaction(SIGSYS, &action, NULL);
	if (prctl(PR_SET_SYSCALL_USER_DISPATCH, 1 /* on */, 0, 0, &selector)) {
		perror("dispatching");
		return 125;
	}
	puts("ready");
	fflush(stdout);
	for (;;) {
		long answer = CALL;

		selector = BLOCK;
		__asm__ volatile("syscall" : "+a"(answer) : : "rcx", "r11", "memory");
		if (answer != ANSWER) {
			selector = ALLOW;
			printf("a call returned %ld\n", answer);
			return 1;
		}
	}
}
