/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* A thread waits, whose stack ends where another thread's alternate signal stack begins, in the same mapping, as Go has
 * them. That thread reads the clocks until a signal interrupts it in code that no file has; then it prints
 * "interrupted" and waits as well. The frame of that signal stays in memory. */
#include "judge.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <ucontext.h>

enum { STACK = 256 << 10, OTHER_STACK = 32 << 10 };

static atomic_int is_interrupted;
static char *memory;

static void handle(int signal, siginfo_t *info, void *context) {
	ucontext_t *interrupted = context;
	void *pc = (void *)interrupted->uc_mcontext.gregs[REG_RIP];
	Dl_info object;

	(void)info;
	if (!dladdr(pc, &object) || strstr(object.dli_fname, "vdso")) {
		/* No other frame after this one. */
		sigaddset(&interrupted->uc_sigmask, signal);
		is_interrupted = 1;
	}
}

static void *read_until_interrupted(void *unused) {
	const stack_t other = {.ss_sp = memory + STACK, .ss_size = OTHER_STACK};

	sigset_t alarm;

	expect(sigaltstack(&other, NULL) == 0, "sigaltstack, errno", errno);
	sigemptyset(&alarm);
	sigaddset(&alarm, SIGALRM);
	pthread_sigmask(SIG_UNBLOCK, &alarm, NULL);
	while (!is_interrupted) {
		judge_clocks();
	}
	say("interrupted");
	while (!is_over) {
		nap_ns(NS_PER_MS);
	}
	return unused;
}

static void *wait_below(void *unused) {
	while (!is_over) {
		nap_ns(NS_PER_MS);
	}
	return unused;
}

int main(void) {
	const struct itimerval often = {{0, 50}, {0, 50}};
	struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_ONSTACK | SA_SIGINFO | SA_RESTART};
	pthread_attr_t below;
	pthread_t waiting, reading;
	sigset_t start, blocked;

	begin();
	memory = mmap(NULL, STACK + OTHER_STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED) {
		perror("mmap");
		return NOT_ON_THIS_KERNEL;
	}
	pthread_attr_init(&below);
	pthread_attr_setstack(&below, memory, STACK);
	sigaction(SIGALRM, &action, NULL);
	sigemptyset(&start);
	sigaddset(&start, SIGUSR1);
	blocked = start;
	sigaddset(&blocked, SIGALRM);
	pthread_sigmask(SIG_BLOCK, &blocked, NULL);
	waiting = start_thread(wait_below, NULL, &below);
	say("ready");
	until_the_end(&start);
	reading = start_thread(read_until_interrupted, NULL, NULL);
	setitimer(ITIMER_REAL, &often, NULL);
	until_the_end(NULL);
	pthread_join(waiting, NULL);
	pthread_join(reading, NULL);
	return verdict();
}
