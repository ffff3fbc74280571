/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Sends itself a signal for each function of signal return, with which it is linked, for a debugger. */
#include "machine.h"

extern void __kernel_sigreturn(void);
extern void __kernel_rt_sigreturn(void);

enum { SIGUSR1 = 10, SA_SIGINFO = 4 };

volatile int handled;

__attribute__((noinline)) void handler(int number) { handled += number; }

__attribute__((noinline)) void interrupted(void) {
	system_call(FP_NR_kill, system_call(FP_NR_getpid, 0, 0, 0, 0), SIGUSR1, 0, 0);
	handled++;
}

static void through(void (*restorer)(void), unsigned long flags) {
	unsigned long action[5] = {SIGNAL_ACTION(handler, flags, restorer)};

	system_call(FP_NR_rt_sigaction, SIGUSR1, (long)&action, 0, 8);
	interrupted();
}

void run(void) {
	through(__kernel_rt_sigreturn, SA_SIGINFO);
	through(__kernel_sigreturn, 0);
	system_call(FP_NR_exit_group, 0, 0, 0, 0);
}
