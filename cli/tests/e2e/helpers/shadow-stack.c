/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* shadow-stack: threads whose return addresses the CPU compares with a second stack (CET), calls and returns, and
 * signal handlers that interrupt them. Exits with 125 if CPU, kernel or program have no such stacks. */
#include "judge.h"

/* arch_prctl(2): arch/x86/include/uapi/asm/prctl.h; Linux 6.6. */
enum { SHSTK_ENABLE = 0x5001, SHSTK_STATUS = 0x5005, SHSTK = 1 };

static struct work *calls, *handled;

static void handle(int signal) {
	(void)signal;
	judge_clocks();
	handled->times++;
}

__attribute__((noinline)) static int go_down(int depth) {
	if (depth == 0) {
		judge_clocks();
		return 0;
	}
	return go_down(depth - 1) + 1;
}

static void *call(void *unused) {
	while (!is_over) {
		expect(go_down(200) == 200, "a call returned too early", 0);
		calls->times++;
	}
	return unused;
}

/* Never returns: frames from before have no entry on the second stack. */
__attribute__((noinline, noreturn)) static void live(void) {
	struct sigaction action = {.sa_handler = handle, .sa_flags = SA_RESTART};
	unsigned long features = 0;
	pthread_t threads[2];
	sigset_t end;
	const struct timespec wait = {0, NS_PER_MS};

	if (syscall(SYS_arch_prctl, SHSTK_STATUS, &features) || !(features & SHSTK)) {
		_exit(NOT_ON_THIS_KERNEL);
	}
	sigaction(SIGUSR2, &action, NULL);
	for (int i = 0; i < 2; i++) {
		threads[i] = start_thread(call, NULL, NULL);
	}
	say("ready");
	sigemptyset(&end);
	sigaddset(&end, SIGTERM);
	while (sigtimedwait(&end, NULL, &wait) != SIGTERM) {
		expect(errno == EAGAIN, "sigtimedwait: errno", errno);
		for (int i = 0; i < 2; i++) {
			pthread_kill(threads[i], SIGUSR2);
		}
	}
	is_over = 1;
	for (int i = 0; i < 2; i++) {
		pthread_join(threads[i], NULL);
	}
	exit(verdict());
}

int main(void) {
	begin();
	calls = kind_of_work("calls");
	handled = kind_of_work("signals");
	/* By the instruction itself: a function that makes the call would have to return. */
	long answer;
	__asm__ volatile("syscall"
			 : "=a"(answer)
			 : "a"(SYS_arch_prctl), "D"((long)SHSTK_ENABLE), "S"((long)SHSTK)
			 : "rcx", "r11", "memory");
	if (answer) {
		fprintf(stderr, "shadow stacks: errno %ld\n", -answer);
		return NOT_ON_THIS_KERNEL;
	}
	live();
}
