/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * signals: handlers of both kinds run, return to the interrupted code, and see its state.
 *
 * Prints one line for each test, `plain ok`, or what went wrong; exits 1 if any failed.
 */
#include "clocks.h"

#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

static volatile sig_atomic_t seen, with_info;
static int failures;
static sigjmp_buf back;

static void handler(int signal) {
	(void)signal;
	seen++;
	read_libc_ns(ID_MONOTONIC);
}

static void handler_with_info(int signal, siginfo_t *info, void *context) {
	with_info += info->si_signo == signal && context != NULL;
	read_libc_ns(ID_MONOTONIC);
}

static void escape(int signal) { siglongjmp(back, signal); }

static void report(const char *what, int ok) {
	printf("%s %s\n", what, ok ? "ok" : "FAILED");
	failures += !ok;
}

static void install(int signal, void (*plain)(int), void (*info)(int, siginfo_t *, void *)) {
	struct sigaction action = {0};

	if (info) {
		action.sa_sigaction = info;
		action.sa_flags = SA_SIGINFO;
	} else {
		action.sa_handler = plain;
	}
	sigaction(signal, &action, NULL);
}

int main(void) {
	enum { TIMES = 1000 };
	double x = 1.5;
	sigset_t blocked, after;

	install(SIGUSR1, handler, NULL);
	install(SIGUSR2, NULL, handler_with_info);
	install(SIGALRM, handler, NULL);
	install(SIGSEGV, escape, NULL);

	for (int i = 0; i < TIMES; i++) {
		raise(SIGUSR1);
		x = x * 1.0000001 + 1e-9;
	}
	report("plain", seen == TIMES && x > 1.5 && x < 1.6);
	for (int i = 0; i < TIMES; i++) {
		raise(SIGUSR2);
	}
	report("siginfo", with_info == TIMES);

	/* A signal during a system call that waits: the call fails with EINTR or continues. */
	seen = 0;
	alarm(1);
	pause();
	report("interrupted", seen == 1);

	/* The return from a handler restores the mask of the interrupted code. */
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGHUP);
	sigprocmask(SIG_SETMASK, &blocked, NULL);
	raise(SIGUSR1);
	sigprocmask(SIG_SETMASK, NULL, &after);
	report("mask", sigismember(&after, SIGHUP) == 1 && sigismember(&after, SIGUSR1) == 0);

	if (sigsetjmp(back, 1) == 0) {
		*(volatile int *)8 = 1;
		report("fault", 0);
	} else {
		report("fault", 1);
	}

	/* Many signals, at any moment of a clock read. */
	struct itimerval often = {{0, 200}, {0, 200}};
	seen = 0;
	setitimer(ITIMER_REAL, &often, NULL);
	long long last = 0, ordered = 1;
	for (int i = 0; i < 2000000 && seen < 500; i++) {
		long long now = read_libc_ns(ID_MONOTONIC);
		ordered &= now >= last;
		last = now;
	}
	report("storm", ordered && seen > 0);
	return failures != 0;
}
