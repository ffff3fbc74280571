/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Two threads on one CPU add to one number, in restartable sequences (rseq(2)): the kernel restarts a sequence if the
 * other thread ran in between, so no addition is lost. The threads are in a sequence nearly always. Ends with SIGTERM,
 * and prints the number of lost additions. glibc must not register rseq: GLIBC_TUNABLES=glibc.pthread.rseq=0. */
#include <linux/rseq.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SIGNATURE = 0x53053053, SPINS = 200000 };

static long number;
static atomic_int is_over;

static void fail(const char *what) {
	perror(what);
	exit(2);
}

/* Adds one, slowly; 0 if it was interrupted. */
static int add(struct rseq *area) {
	__asm__ goto volatile(
	    ".pushsection __rseq_cs, \"aw\"\n"
	    ".balign 32\n"
	    "3: .long 0, 0\n"
	    ".quad 1f, 2f - 1f, 4f\n"
	    ".popsection\n"
#ifdef __aarch64__
	    "adrp x16, 3b\n"
	    "add x16, x16, :lo12:3b\n"
	    "str x16, %[sequence]\n"
	    "1:\n"
	    "ldr x16, %[number]\n"
	    "mov w17, %w[spins]\n"
	    "5: subs w17, w17, #1\n"
	    "b.ne 5b\n"
	    "add x16, x16, #1\n"
	    "str x16, %[number]\n"
	    "2:\n"
	    ".pushsection __rseq_failure, \"ax\"\n"
	    ".long %c[signature]\n"
	    "4: b %l[interrupted]\n"
	    ".popsection\n"
	    :
	    : [sequence] "m"(area->rseq_cs), [number] "m"(number), [spins] "r"(SPINS), [signature] "i"(SIGNATURE)
	    : "x16", "x17", "cc", "memory"
#else
	    "lea 3b(%%rip), %%rax\n"
	    "mov %%rax, %[sequence]\n"
	    "1:\n"
	    "mov %[number], %%rax\n"
	    "mov %[spins], %%ecx\n"
	    "5: dec %%ecx\n"
	    "jnz 5b\n"
	    "inc %%rax\n"
	    "mov %%rax, %[number]\n"
	    "2:\n"
	    ".pushsection __rseq_failure, \"ax\"\n"
	    ".long %c[signature]\n"
	    "4: jmp %l[interrupted]\n"
	    ".popsection\n"
	    :
	    : [sequence] "m"(area->rseq_cs), [number] "m"(number), [spins] "i"(SPINS), [signature] "i"(SIGNATURE)
	    : "rax", "rcx", "cc", "memory"
#endif
	    : interrupted);
	return 1;
interrupted:
	return 0;
}

static void *add_again_and_again(void *added) {
	static _Thread_local struct rseq area;
	area.cpu_id = RSEQ_CPU_ID_UNINITIALIZED;
	if (syscall(SYS_rseq, &area, sizeof(area), 0, SIGNATURE)) {
		fail("rseq");
	}
	while (!is_over) {
		*(long *)added += add(&area);
	}
	return NULL;
}

int main(void) {
	pthread_t threads[2];
	long added[2] = {0};
	sigset_t end;
	cpu_set_t cpus;
	int signal, cpu = sched_getcpu();

	CPU_ZERO(&cpus);
	CPU_SET(cpu, &cpus);
	if (sched_setaffinity(0, sizeof(cpus), &cpus)) {
		fail("sched_setaffinity");
	}
	sigemptyset(&end);
	sigaddset(&end, SIGTERM);
	sigprocmask(SIG_BLOCK, &end, NULL);
	for (int i = 0; i < 2; i++) {
		if (pthread_create(&threads[i], NULL, add_again_and_again, &added[i])) {
			fail("pthread_create");
		}
	}
	puts("ready");
	fflush(stdout);
	sigwait(&end, &signal);
	is_over = 1;
	for (int i = 0; i < 2; i++) {
		pthread_join(threads[i], NULL);
	}
	if (added[0] + added[1] == 0) {
		puts("no sequence came to its end");
	}
	printf("lost %ld\n", added[0] + added[1] - number);
	return 0;
}
