/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Makes system calls for time, and for the CPU's number, by its own instructions, all the time, and detects any
 * difference from a system call.
 *
 *   raw-calls [-t THREADS] [-1]
 *
 * Checks, in turns: that a call changes the registers that a system call changes and nothing else, neither flags nor
 * the red zone nor vector registers; the same with a signal after each instruction (on AArch64: at any), whose handler
 * makes such calls too; the results for all clocks, unknown clocks and buffers that cannot be written, against calls
 * that are not redirected, because their number comes from memory; that time does not go back; children of fork and
 * vfork. Prints "ready" after the first round of each thread. Runs until SIGTERM, or for one round (-1); then prints
 * the counts, and exits 1 if there was a difference. Differences are printed as they are found.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

static _Atomic unsigned long rounds, differences, signals;
static volatile sig_atomic_t is_over;
static _Thread_local volatile sig_atomic_t is_stepping;

struct state;

struct form {
	const char *name;
	void (*call)(const struct state *, struct state *);
	long number;
};

static void difference(const char *form, const char *what, uintptr_t is, uintptr_t should);

/* A call that no fastpath redirects: its number is not in the code. */
static _Thread_local volatile long number_in_memory;

#if defined(__x86_64__)
#include "raw-calls-x86_64.h"
#else
#include "raw-calls-aarch64.h"
#endif

enum { FORMS = sizeof(forms) / sizeof(forms[0]) };

static void difference(const char *form, const char *what, uintptr_t is, uintptr_t should) {
	char line[256];
	int size = snprintf(line, sizeof(line), "%s: %s: %#llx, should be %#llx\n", form, what, (unsigned long long)is,
			    (unsigned long long)should);

	atomic_fetch_add(&differences, 1);
	if (size > 0 && write(STDOUT_FILENO, line, (size_t)size) < 0) {
		_exit(2);
	}
}

/* Memory that can be written, that can only be read, and that cannot be read either, in this order, a page each. */
static unsigned char *pages;
/* The largest of any kernel. */
enum { PAGE = 65536 };

static int reads_a_clock(const struct form *form) { return form->number != CLOCK_GETRES && form->number != GETCPU; }

static int takes_a_clock(const struct form *form) {
	return form->number == CLOCK_GETTIME || form->number == CLOCK_GETRES;
}

/* Bytes that the kernel writes to a buffer. */
static unsigned size_of(const struct form *form) {
	switch (form->number) {
	case GETCPU:
		return sizeof(unsigned);
	case TIME:
		return sizeof(long);
	default:
		return 2 * sizeof(long);
	}
}

static uintptr_t buffer(const struct form *form, unsigned which, void *on_stack) {
	static _Thread_local int64_t of_thread[2];
	static int64_t of_program[2];

	switch (which % 10) {
	case 0:
	case 1:
		return (uintptr_t)on_stack;
	case 2:
		return (uintptr_t)of_thread;
	case 3:
		return (uintptr_t)of_program;
	case 4:
		return (uintptr_t)pages + PAGE - size_of(form);
	case 5:
		/* Into the page that can only be read. */
		return (uintptr_t)pages + PAGE - (size_of(form) < 16 ? size_of(form) / 2 : 4);
	case 6:
		return (uintptr_t)pages + PAGE;
	case 7:
		return (uintptr_t)pages + 2 * PAGE;
	case 8:
		return 0;
	default:
		/* No address of user space. */
		return UINTPTR_MAX / 2 + 1 + which % PAGE;
	}
}

static const int clocks[] = {0, 1, 4, 5, 6, 7, 11, 2, 3, 8, 9, 10, 12, 99, -1, -7};
enum { CLOCKS = sizeof(clocks) / sizeof(clocks[0]) };

static uint64_t word(uint64_t *seed) {
	*seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return *seed ^ *seed >> 29;
}

/* Returns the time that a call of this form has written. */
static long long ns_at(const struct form *form, const void *at) {
	long words[2] = {0, 0};

	memcpy(words, at, size_of(form));
	return words[0] * 1000000000LL + words[1] * (form->number == GETTIMEOFDAY ? 1000LL : 1LL);
}

/* The kernel's time. */
static long long kernels_ns(int clock) {
	long words[2];

	by_kernel(CLOCK_GETTIME, (uintptr_t)clock, (uintptr_t)words);
	return ns_at(&forms[0], words);
}

/* Compares a time with the kernel's before and after it. */
static void between(const struct form *form, int clock, long long before_ns, long long read_ns) {
	long long grain_ns = form->number == TIME ? 1000000000 : form->number == GETTIMEOFDAY ? 1000 : 1;
	long long after_ns = kernels_ns(clock);

	if (read_ns < before_ns / grain_ns * grain_ns || read_ns > after_ns) {
		difference(form->name, "time is not between the kernel's", (uintptr_t)read_ns, (uintptr_t)before_ns);
	}
}

/* Returns getcpu's other buffer, and none in `first` in some of the turns. */
static uintptr_t second_buffer(unsigned which, uintptr_t *first, void *on_stack) {
	uintptr_t at = *first;

	switch (which % 4) {
	case 0:
		return 0;
	case 1:
		return at + sizeof(unsigned);
	case 2:
		return (uintptr_t)on_stack + sizeof(int64_t);
	default:
		*first = 0;
		return at;
	}
}

/* Compares a clock's resolution with the kernel's. */
static void look_at_resolution(const struct form *form, const void *at, const void *kernels) {
	if (memcmp(at, kernels, size_of(form)) != 0) {
		difference(form->name, "resolution", (uintptr_t)ns_at(form, at), (uintptr_t)ns_at(form, kernels));
	}
}

/* The thread may be on another CPU by now. */
static void look_at_cpu(const struct form *form, const unsigned *cpu, const unsigned *node) {
	unsigned cpus = (unsigned)sysconf(_SC_NPROCESSORS_CONF);

	if (cpu && *cpu >= cpus) {
		difference(form->name, "CPU", *cpu, cpus - 1);
	}
	if (node && *node > (cpu ? *cpu : cpus - 1)) {
		difference(form->name, "node", *node, 0);
	}
}

/* Makes one call with registers that look random, and compares everything with what the kernel does. */
static void look(const struct form *form, unsigned turn, uint64_t *seed, int steps) {
	struct state before, after;
	int64_t on_stack[2] = {-1, -1}, kernels[2];
	int clock = takes_a_clock(form) ? clocks[turn / 10 % CLOCKS] : form->number == GETTIMEOFDAY ? 0 : 5;
	uintptr_t at = buffer(form, turn, on_stack);
	uintptr_t other = form->number == GETCPU ? second_buffer(turn / 10, &at, on_stack) : 0;
	/* Other threads write to the program's buffer and to the end of the page. */
	int is_own = turn % 10 < 3 && !steps;
	long long first_ns;
	long wanted;

	for (size_t i = 0; i < sizeof(before) / 8; i++) {
		((uint64_t *)(void *)&before)[i] = word(seed);
	}
	before.registers[FLAGS] = flags_of(word(seed), steps);
	if (takes_a_clock(form)) {
		before.registers[FIRST] = (uintptr_t)(intptr_t)clock;
		before.registers[SECOND] = at;
		wanted = by_kernel(form->number, (uintptr_t)(intptr_t)clock, at ? (uintptr_t)kernels : 0);
		wanted = wanted == 0 ? by_kernel(form->number, (uintptr_t)(intptr_t)clock, at) : wanted;
	} else {
		before.registers[FIRST] = at;
		before.registers[SECOND] = other;
		wanted = by_kernel(form->number, at, other);
	}
	/* Some of the clocks do not exist. */
	first_ns = wanted == 0 || !takes_a_clock(form) ? kernels_ns(clock) : 0;
	if (is_own && !reads_a_clock(form) && wanted == 0) {
		memset((void *)(at ? at : other), 0xff, size_of(form));
	}
	is_stepping = steps;
	form->call(&before, &after);
	is_stepping = 0;
	compare(form, &before, &after);
	if (form->number == TIME && wanted > 0) {
		if ((long)after.registers[RESULT] < wanted || (long)after.registers[RESULT] > wanted + 2) {
			difference(form->name, "seconds", after.registers[RESULT], (uintptr_t)wanted);
		}
	} else if ((long)after.registers[RESULT] != wanted) {
		difference(form->name, "result", after.registers[RESULT], (uintptr_t)wanted);
	}
	if (wanted < 0 || !is_own || (form->number != TIME && after.registers[RESULT] != 0)) {
		return;
	}
	if (form->number == GETCPU) {
		look_at_cpu(form, (const void *)at, (const void *)other);
	} else if (form->number == CLOCK_GETRES) {
		look_at_resolution(form, (const void *)at, kernels);
	} else if (at != 0) {
		between(form, clock, first_ns, ns_at(form, (const void *)at));
	}
}

static void on_step(int signal, siginfo_t *info, void *context) {
	static _Thread_local unsigned turn;
	static _Thread_local uint64_t seed = 7;

	(void)signal;
	(void)info;
	(void)context;
	atomic_fetch_add(&signals, 1);
	if (is_stepping) {
		is_stepping = 0;
		/* A call within a call, on the same stack. */
		look(&forms[turn % FORMS], turn, &seed, 0);
		turn++;
		is_stepping = 1;
	}
}

static void look_at_children(uint64_t *seed) {
	pid_t child = fork();
	int status = 0;

	if (child == 0) {
		unsigned long known = atomic_load(&differences);
		for (unsigned turn = 0; turn < 40; turn++) {
			look(&forms[turn % FORMS], turn, seed, 0);
		}
		_exit(atomic_load(&differences) == known ? 0 : 1);
	}
	if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
		difference("fork", "status", (uintptr_t)status, 0);
	}
	child = vfork();
	if (child == 0) {
		long words[2];
		_exit(syscall(CLOCK_GETTIME, 1, words) == 0 ? 0 : 1);
	}
	if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
		difference("vfork", "status", (uintptr_t)status, 0);
	}
}

/* libc's function for any system call. */
static void look_at_libc(void) {
	long words[2] = {0, 0};
	long long before_ns = kernels_ns(1);

	if (syscall(CLOCK_GETTIME, 1, words) != 0) {
		difference("syscall()", "errno", (uintptr_t)errno, 0);
	}
	between(&forms[0], 1, before_ns, ns_at(&forms[0], words));
	if (syscall(CLOCK_GETTIME, 99, words) != -1 || errno != EINVAL) {
		difference("syscall()", "errno", (uintptr_t)errno, EINVAL);
	}
	if (syscall(CLOCK_GETRES, 1, words) != 0 || words[0] != 0 || words[1] == 0) {
		difference("syscall()", "resolution", (uintptr_t)words[1], 1);
	}
	if (syscall(SYS_getcpu, NULL, NULL, NULL) != 0) {
		difference("syscall()", "getcpu", (uintptr_t)errno, 0);
	}
	if (syscall(SYS_getpid) != getpid()) {
		difference("syscall()", "getpid", 0, (uintptr_t)getpid());
	}
}

static _Atomic int ready;
static int is_once;

static void *work(void *argument) {
	uint64_t seed = (uintptr_t)argument * 77 + 1;

	if (prepare_steps() != 0) {
		_exit(2);
	}
	for (unsigned turn = 0; !is_over; turn++) {
		for (unsigned form = 0; form < FORMS; form++) {
			look(&forms[form], turn, &seed, 0);
			if (turn % 16 == 0) {
				look(&forms[form], turn / 16, &seed, 1);
			}
		}
		look_at_libc();
		atomic_fetch_add(&rounds, 1);
		if (turn == 10 * CLOCKS) {
			atomic_fetch_add(&ready, 1);
			if (is_once) {
				return NULL;
			}
		}
	}
	return NULL;
}

static void end(int signal) {
	(void)signal;
	is_over = 1;
}

int main(int argc, char **argv) {
	enum { MOST_THREADS = 16 };
	pthread_t threads[MOST_THREADS];
	long count = 2;
	uint64_t seed = 5;

	for (int option; (option = getopt(argc, argv, "t:1")) != -1;) {
		if (option == '1') {
			is_once = 1;
		} else if (option != 't' || (count = strtol(optarg, NULL, 10)) < 1 || count > MOST_THREADS) {
			return 2;
		}
	}
	pages = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (pages == MAP_FAILED || mprotect(pages + PAGE, PAGE, PROT_READ) ||
	    mprotect(pages + 2 * PAGE, PAGE, PROT_NONE)) {
		return 2;
	}
	struct sigaction step = {.sa_sigaction = on_step, .sa_flags = SA_SIGINFO};
	struct sigaction over = {.sa_handler = end, .sa_flags = SA_RESTART};
	sigaction(SIGTRAP, &step, NULL);
	sigaction(SIGTERM, &over, NULL);
	for (long i = 0; i < count; i++) {
		if (pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)i) != 0) {
			return 2;
		}
	}
	while (ready < count && !is_over) {
		usleep(1000);
	}
	printf("ready\n");
	fflush(stdout);
	while (!is_over && !is_once) {
		look_at_children(&seed);
		usleep(20000);
	}
	for (long i = 0; i < count; i++) {
		pthread_join(threads[i], NULL);
	}
	printf("%lu rounds, %lu signals, %lu differences\n", (unsigned long)rounds, (unsigned long)signals,
	       (unsigned long)differences);
	return differences != 0;
}
