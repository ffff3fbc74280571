/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* secret-memory data|stack: has memory that ptrace(2), process_vm_readv(2) and the kernel itself cannot read
 * (memfd_secret(2)). A thread keeps data there, and checks it; with "stack", it also runs there, and a signal
 * interrupts it repeatedly, whose handler runs there for a while. With "late", SIGUSR1 starts that thread. Exits with
 * 125 if there is no such memory. */
#include "judge.h"

#include <sys/mman.h>
#include <ucontext.h>

/* memfd_secret(2), on every architecture; Linux 5.14. */
enum { NR_memfd_secret = 447 };
enum { SIZE = 256 << 10, WORDS = SIZE / 2 / sizeof(long long) };

static struct work *checks, *handled;
static char *memory;
static int on_stack;

static void handle(int signal) {
	const struct timespec stay = {0, 3 * NS_PER_MS};
	int kept = errno;

	(void)signal;
	judge_clocks();
	clock_nanosleep(CLOCK_MONOTONIC, 0, &stay, NULL);
	handled->times++;
	errno = kept;
}

/* The lower half of the memory is its data. */
static void live_in_secret(void) {
	volatile long long *words = (long long *)memory;
	long long round = 0;

	while (!is_over) {
		for (int i = 0; i < WORDS; i++) {
			words[i] = round ^ i;
		}
		for (int i = 0; i < 1000; i++) {
			judge_clocks();
		}
		for (int i = 0; i < WORDS; i++) {
			expect(words[i] == (round ^ i), "secret data changed, at", i);
		}
		round++;
		checks->times++;
	}
}

/* A thread, on a stack in the upper half with "stack". The thread's own control block stays where it is: the kernel has
 * futexes there. */
static void *live(void *unused) {
	static ucontext_t there, here;

	if (!on_stack) {
		live_in_secret();
		return unused;
	}
	getcontext(&there);
	there.uc_stack.ss_sp = memory + SIZE / 2;
	there.uc_stack.ss_size = SIZE / 2;
	there.uc_link = &here;
	makecontext(&there, live_in_secret, 0);
	swapcontext(&here, &there);
	return unused;
}

static void *interrupt(void *thread) {
	while (!is_over) {
		/* Longer than the handler runs, or the thread would do nothing else. */
		nap_ns(5 * NS_PER_MS);
		pthread_kill(*(pthread_t *)thread, SIGUSR2);
	}
	return NULL;
}

int main(int argc, char **argv) {
	struct sigaction action = {.sa_handler = handle, .sa_flags = SA_RESTART};
	int late = argc >= 3;
	int fd = syscall(NR_memfd_secret, O_CLOEXEC);
	pthread_t secret, judge, interrupter = 0;
	sigset_t start;

	on_stack = argc >= 2 && strcmp(argv[1], "stack") == 0;
	begin();
	if (fd < 0 || ftruncate(fd, SIZE) ||
	    (memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) == MAP_FAILED) {
		perror("memfd_secret");
		return NOT_ON_THIS_KERNEL;
	}
	checks = kind_of_work("checks of secret data");
	sigaction(SIGUSR2, &action, NULL);
	sigemptyset(&start);
	sigaddset(&start, SIGUSR1);
	pthread_sigmask(SIG_BLOCK, &start, NULL);
	judge = start_thread(judge_clocks_always, NULL, NULL);
	if (late) {
		say("waiting");
		until_the_end(&start);
	}
	if (on_stack) {
		handled = kind_of_work("signals on a secret stack");
	}
	secret = start_thread(live, NULL, NULL);
	/* The thread is there by then. */
	while (checks->times == 0) {
		nap_ns(NS_PER_MS);
	}
	if (on_stack) {
		interrupter = start_thread(interrupt, &secret, NULL);
	}
	say("ready");
	until_the_end(NULL);
	if (on_stack) {
		pthread_join(interrupter, NULL);
	}
	pthread_join(secret, NULL);
	pthread_join(judge, NULL);
	return verdict();
}
