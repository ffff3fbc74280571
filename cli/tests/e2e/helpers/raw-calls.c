/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Makes system calls for time by its own instructions, all the time, and detects any difference from a system call.
 *
 *   raw-calls [-t THREADS] [-1]
 *
 * Checks, in turns: that a call changes rax, rcx and r11 and nothing else, neither flags nor the red zone nor vector
 * registers; the same with a signal after each instruction, whose handler makes such calls too; the results for all
 * clocks, unknown clocks and buffers that cannot be written, against calls that are not redirected, because their
 * number comes from memory; that time does not go back; children of fork and vfork. Prints "ready" after the first
 * round of each thread. Runs until SIGTERM, or for one round (-1); then prints the counts, and exits 1 if there was a
 * difference. Differences are printed as they are found.
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

/* Registers in the order in which `call_with` stores them. */
enum { RAX, RBX, RCX, RDX, RSI, RDI, RBP, R8, R9, R10, R11, R12, R13, R14, R15, FLAGS, REGISTERS };

struct state {
	uint64_t registers[REGISTERS];
	_Alignas(16) unsigned char vectors[16][16];
	uint64_t red_zone[16];
};

/* Carry, parity, adjust, zero, sign, direction, overflow. */
enum { ARITHMETIC = 0x8d5, DIRECTION = 0x400, TRAP = 0x100 };

static _Atomic unsigned long rounds, differences, steps;
static volatile sig_atomic_t is_over;
static _Thread_local volatile sig_atomic_t is_stepping;

/*
 * Each makes one system call for time with the registers, flags and red zone of `before`, and stores those after it.
 * The sites are of all forms: the number right before the call, further before it, and a label in between, so that only
 * what follows the call can be replaced.
 */
#define CALL_WITH(name, number, site)                                                                                  \
	void name(const struct state *before, struct state *after);                                                    \
	__asm__(                                                                                                       \
	    ".text\n"                                                                                                  \
	    ".type " #name ", @function\n" #name ":\n"                                                                 \
	    "	push %rbx\n	push %rbp\n	push %r12\n	push %r13\n	push %r14\n	push %r15\n"                                 \
	    "	push %rsi\n"                                                                                             \
	    "	sub $512, %rsp\n"                                                                                        \
	    "	mov %rdi, %rax\n"                                                                                        \
	    "	.set i, 0\n	.rept 16\n"                                                                                  \
	    "	mov 384 + i * 8(%rax), %rcx\n	mov %rcx, -128 + i * 8(%rsp)\n	.set i, i + 1\n	.endr\n"                    \
	    "	movdqa 128(%rax), %xmm0\n	movdqa 128 + 16(%rax), %xmm1\n	movdqa 128 + 32(%rax), %xmm2\n"                 \
	    "	movdqa 128 + 48(%rax), %xmm3\n	movdqa 128 + 64(%rax), %xmm4\n	movdqa 128 + 80(%rax), %xmm5\n"            \
	    "	movdqa 128 + 96(%rax), %xmm6\n	movdqa 128 + 112(%rax), %xmm7\n	movdqa 128 + 128(%rax), %xmm8\n"          \
	    "	movdqa 128 + 144(%rax), %xmm9\n	movdqa 128 + 160(%rax), %xmm10\n	movdqa 128 + 176(%rax), "               \
	    "%xmm11\n"                                                                                                 \
	    "	movdqa 128 + 192(%rax), %xmm12\n	movdqa 128 + 208(%rax), %xmm13\n	movdqa 128 + "                         \
	    "224(%rax), %xmm14\n"                                                                                      \
	    "	movdqa 128 + 240(%rax), %xmm15\n" /* The flags last, above the red zone. */                            \
	    "	mov 120(%rax), %rcx\n	mov %rcx, 64(%rsp)\n"                                                              \
	    "	mov 8(%rax), %rbx\n	mov 24(%rax), %rdx\n	mov 32(%rax), %rsi\n	mov 40(%rax), %rdi\n"                      \
	    "	mov 48(%rax), %rbp\n	mov 56(%rax), %r8\n	mov 64(%rax), %r9\n	mov 72(%rax), %r10\n"                       \
	    "	mov 80(%rax), %r11\n	mov 88(%rax), %r12\n	mov 96(%rax), %r13\n	mov 104(%rax), %r14\n"                    \
	    "	mov 112(%rax), %r15\n	mov 16(%rax), %rcx\n"                                                              \
	    "	lea 64(%rsp), %rsp\n	popf\n	lea -72(%rsp), %rsp\n" site                                            \
	    "	lea -8(%rsp), %rsp\n	lea 8(%rsp), %rsp\n"  /* a step after the call */                              \
	    "	mov %rax, 72(%rsp)\n	mov %rcx, 80(%rsp)\n" /* A handler may use what lies below the stack pointer   \
								 from here on. */                                      \
	    "	.set i, 0\n	.rept 16\n"                                                                                  \
	    "	mov -128 + i * 8(%rsp), %rcx\n	mov %rcx, 128 + i * 8(%rsp)\n	.set i, i + 1\n	.endr\n"                    \
	    "	lea 96(%rsp), %rsp\n	pushf\n	lea -88(%rsp), %rsp\n" /* at 88 of the frame */                        \
	    "	testl $0x100, 88(%rsp)\n	jz 7f\n"               /* end the steps */                             \
	    "	andl $~0x100, 88(%rsp)\n	lea 88(%rsp), %rsp\n	popf\n	lea -8(%rsp), %rsp\n	lea "                          \
	    "-88(%rsp), %rsp\n"                                                                                        \
	    "	orl $0x100, 88(%rsp)\n"                                                                                  \
	    "7:	cld\n"                                                                                                 \
	    "	mov 512(%rsp), %rax\n"                                                                                   \
	    "	mov 72(%rsp), %rcx\n	mov %rcx, (%rax)\n	mov %rbx, 8(%rax)\n"                                             \
	    "	mov 80(%rsp), %rcx\n	mov %rcx, 16(%rax)\n"                                                               \
	    "	mov %rdx, 24(%rax)\n	mov %rsi, 32(%rax)\n	mov %rdi, 40(%rax)\n	mov %rbp, 48(%rax)\n"                     \
	    "	mov %r8, 56(%rax)\n	mov %r9, 64(%rax)\n	mov %r10, 72(%rax)\n	mov %r11, 80(%rax)\n"                       \
	    "	mov %r12, 88(%rax)\n	mov %r13, 96(%rax)\n	mov %r14, 104(%rax)\n	mov %r15, 112(%rax)\n"                   \
	    "	mov 88(%rsp), %rcx\n	mov %rcx, 120(%rax)\n"                                                              \
	    "	movdqa %xmm0, 128(%rax)\n	movdqa %xmm1, 128 + 16(%rax)\n	movdqa %xmm2, 128 + 32(%rax)\n"                 \
	    "	movdqa %xmm3, 128 + 48(%rax)\n	movdqa %xmm4, 128 + 64(%rax)\n	movdqa %xmm5, 128 + 80(%rax)\n"            \
	    "	movdqa %xmm6, 128 + 96(%rax)\n	movdqa %xmm7, 128 + 112(%rax)\n	movdqa %xmm8, 128 + 128(%rax)\n"          \
	    "	movdqa %xmm9, 128 + 144(%rax)\n	movdqa %xmm10, 128 + 160(%rax)\n	movdqa %xmm11, 128 + "                  \
	    "176(%rax)\n"                                                                                              \
	    "	movdqa %xmm12, 128 + 192(%rax)\n	movdqa %xmm13, 128 + 208(%rax)\n	movdqa %xmm14, 128 + "                 \
	    "224(%rax)\n"                                                                                              \
	    "	movdqa %xmm15, 128 + 240(%rax)\n"                                                                        \
	    "	.set i, 0\n	.rept 16\n"                                                                                  \
	    "	mov 128 + i * 8(%rsp), %rcx\n	mov %rcx, 384 + i * 8(%rax)\n	.set i, i + 1\n	.endr\n"                     \
	    "	add $520, %rsp\n"                                                                                        \
	    "	pop %r15\n	pop %r14\n	pop %r13\n	pop %r12\n	pop %rbp\n	pop %rbx\n	ret\n"                                 \
	    ".size " #name ", . - " #name "\n")

CALL_WITH(clock_gettime_at_once, 228, "	mov $228, %eax\n	syscall\n");
CALL_WITH(clock_gettime_early, 228, "	mov $228, %eax\n	mov %rsi, %rsi\n	xchg %r8, %r8\n	syscall\n");
CALL_WITH(clock_gettime_label, 228,
	  "	mov $228, %eax\n5:	mov %rsi, %rsi\n	syscall\n	lea (%rsi), %rsi\n	jmp "
	  "6f\n	jmp 5b\n6:\n");
CALL_WITH(gettimeofday_at_once, 96, "	mov $96, %eax\n	syscall\n");
CALL_WITH(time_at_once, 201, "	mov $201, %eax\n	syscall\n");

struct form {
	const char *name;
	void (*call)(const struct state *, struct state *);
	long number;
};

static const struct form forms[] = {
    {"clock_gettime", clock_gettime_at_once, 228},
    {"clock_gettime, number set early", clock_gettime_early, 228},
    {"clock_gettime, label before the call", clock_gettime_label, 228},
    {"gettimeofday", gettimeofday_at_once, 96},
    {"time", time_at_once, 201},
};
enum { FORMS = sizeof(forms) / sizeof(forms[0]) };

/* A call that no fastpath redirects: its number is not in the code. */
static _Thread_local volatile long number_in_memory;

static long by_kernel(long number, uint64_t first, uint64_t second) {
	long result;

	number_in_memory = number;
	result = number_in_memory;
	__asm__ volatile("syscall" : "+a"(result) : "D"(first), "S"(second) : "rcx", "r11", "memory");
	return result;
}

static void difference(const char *form, const char *what, uint64_t is, uint64_t should) {
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
enum { PAGE = 4096 };

static uint64_t buffer(const struct form *form, unsigned which, struct timespec *on_stack) {
	static _Thread_local struct timespec of_thread;
	static struct timespec of_program;
	unsigned size = form->number == 201 ? 8 : 16;

	switch (which % 10) {
	case 0:
	case 1:
		return (uint64_t)on_stack;
	case 2:
		return (uint64_t)&of_thread;
	case 3:
		return (uint64_t)&of_program;
	case 4:
		return (uint64_t)pages + PAGE - size;
	case 5:
		return (uint64_t)pages + PAGE - 4; /* into the page that can only be read */
	case 6:
		return (uint64_t)pages + PAGE;
	case 7:
		return (uint64_t)pages + 2 * PAGE;
	case 8:
		return 0;
	default:
		return UINT64_C(0x8000000000000000) + which;
	}
}

static const int clocks[] = {0, 1, 4, 5, 6, 7, 11, 2, 3, 8, 9, 10, 12, 99, -1, -7};
enum { CLOCKS = sizeof(clocks) / sizeof(clocks[0]) };

static uint64_t word(uint64_t *seed) {
	*seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return *seed ^ *seed >> 29;
}

static long long ns_of(const struct form *form, const struct timespec *time) {
	return form->number == 201 ? time->tv_sec * 1000000000LL
				   : time->tv_sec * 1000000000LL + time->tv_nsec * (form->number == 96 ? 1000 : 1);
}

/* Returns how far the time that the kernel tells is after the one in `time`. */
static void between(const struct form *form, int clock, const struct timespec *before, const struct timespec *time) {
	struct timespec after;
	long long grain_ns = form->number == 201 ? 1000000000 : form->number == 96 ? 1000 : 1;
	long long read_ns = ns_of(form, time);

	by_kernel(228, (uint64_t)clock, (uint64_t)&after);
	if (read_ns < ns_of(&forms[0], before) / grain_ns * grain_ns || read_ns > ns_of(&forms[0], &after)) {
		difference(form->name, "time is not between the kernel's", (uint64_t)read_ns,
			   (uint64_t)ns_of(&forms[0], before));
	}
}

static void compare(const struct form *form, const struct state *before, const struct state *after, uint64_t flags) {
	static const char *const names[] = {"rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "r8",
					    "r9",  "r10", "r11", "r12", "r13", "r14", "r15", "flags"};
	/* The resume flag is the debugger's; interrupts are always on. */
	uint64_t wanted = flags | 0x202;

	for (int i = RBX; i < FLAGS; i++) {
		if (i != RCX && i != R11 && after->registers[i] != before->registers[i]) {
			difference(form->name, names[i], after->registers[i], before->registers[i]);
		}
	}
	if ((after->registers[FLAGS] & ~UINT64_C(0x10000)) != wanted) {
		difference(form->name, "flags", after->registers[FLAGS], wanted);
	}
	if ((after->registers[R11] & ~UINT64_C(0x10000)) != wanted) {
		difference(form->name, "r11", after->registers[R11], wanted);
	}
	/* `syscall` leaves the address after it in rcx. */
	if (memcmp((const void *)(after->registers[RCX] - 2), "\x0f\x05", 2) != 0 &&
	    form->call != clock_gettime_label) {
		difference(form->name, "rcx", after->registers[RCX], 0);
	}
	if (memcmp(before->vectors, after->vectors, sizeof(before->vectors)) != 0) {
		difference(form->name, "vector registers", 1, 0);
	}
	if (memcmp(before->red_zone, after->red_zone, sizeof(before->red_zone)) != 0) {
		difference(form->name, "red zone", 1, 0);
	}
}

/* Makes one call with registers that look random, and compares everything with what the kernel does. */
static void look(const struct form *form, unsigned turn, uint64_t *seed, uint64_t trap) {
	struct state before, after;
	struct timespec on_stack = {-1, -1}, kernels, first = {0, 0};
	int clock = form->number == 228 ? clocks[turn / 10 % CLOCKS] : form->number == 96 ? 0 : 5;
	uint64_t at = buffer(form, turn, &on_stack);
	long wanted;

	for (size_t i = 0; i < sizeof(before) / 8; i++) {
		((uint64_t *)(void *)&before)[i] = word(seed);
	}
	before.registers[FLAGS] = (word(seed) & (ARITHMETIC | DIRECTION)) | 0x2 | trap;
	if (form->number == 228) {
		before.registers[RDI] = (uint64_t)(int64_t)clock;
		before.registers[RSI] = at;
	} else {
		before.registers[RDI] = at;
		before.registers[RSI] = 0;
	}
	if (form->number == 228) {
		wanted = by_kernel(228, (uint64_t)(int64_t)clock, at ? (uint64_t)&kernels : 0);
		wanted = wanted == 0 ? by_kernel(228, (uint64_t)(int64_t)clock, at) : wanted;
	} else {
		wanted = by_kernel(form->number, at, 0);
	}
	by_kernel(228, (uint64_t)clock, (uint64_t)&first);
	is_stepping = trap != 0;
	form->call(&before, &after);
	is_stepping = 0;
	compare(form, &before, &after, before.registers[FLAGS]);
	if (form->number == 201 && wanted > 0) {
		if ((long)after.registers[RAX] < wanted || (long)after.registers[RAX] > wanted + 2) {
			difference(form->name, "seconds", after.registers[RAX], (uint64_t)wanted);
		}
	} else if ((long)after.registers[RAX] != wanted) {
		difference(form->name, "result", after.registers[RAX], (uint64_t)wanted);
	}
	/* CPU time passes only while the thread runs: kernel's and own reads alike. */
	if (wanted >= 0 && at != 0 && (form->number != 228 || after.registers[RAX] == 0)) {
		struct timespec read = {0, 0};
		memcpy(&read, (const void *)at, form->number == 201 ? 8 : 16);
		if (at != (uint64_t)pages + PAGE - 4 && trap == 0) {
			static const char shared_by_threads = 3;
			if (turn % 10 != (unsigned)shared_by_threads && turn % 10 != 4) {
				between(form, clock, &first, &read);
			}
		}
	}
}

static void on_step(int signal, siginfo_t *info, void *context) {
	static _Thread_local unsigned turn;
	static _Thread_local uint64_t seed = 7;

	(void)signal;
	(void)info;
	(void)context;
	atomic_fetch_add(&steps, 1);
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
		difference("fork", "status", (uint64_t)status, 0);
	}
	child = vfork();
	if (child == 0) {
		struct timespec time;
		_exit(syscall(SYS_clock_gettime, 1, &time) == 0 ? 0 : 1);
	}
	if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
		difference("vfork", "status", (uint64_t)status, 0);
	}
}

/* libc's function for any system call. */
static void look_at_libc(void) {
	struct timespec before, time, after;

	by_kernel(228, 1, (uint64_t)&before);
	if (syscall(SYS_clock_gettime, 1, &time) != 0) {
		difference("syscall()", "errno", (uint64_t)errno, 0);
	}
	by_kernel(228, 1, (uint64_t)&after);
	if (ns_of(&forms[0], &time) < ns_of(&forms[0], &before) || ns_of(&forms[0], &time) > ns_of(&forms[0], &after)) {
		difference("syscall()", "time", (uint64_t)ns_of(&forms[0], &time), (uint64_t)ns_of(&forms[0], &before));
	}
	if (syscall(SYS_clock_gettime, 99, &time) != -1 || errno != EINVAL) {
		difference("syscall()", "errno", (uint64_t)errno, EINVAL);
	}
	if (syscall(SYS_getpid) != getpid()) {
		difference("syscall()", "getpid", 0, (uint64_t)getpid());
	}
}

static _Atomic int ready;
static int is_once;

static void *work(void *argument) {
	uint64_t seed = (uint64_t)(uintptr_t)argument * 77 + 1;

	for (unsigned turn = 0; !is_over; turn++) {
		for (unsigned form = 0; form < FORMS; form++) {
			look(&forms[form], turn, &seed, 0);
			if (turn % 16 == 0) {
				look(&forms[form], turn / 16, &seed, TRAP);
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
	printf("%lu rounds, %lu steps, %lu differences\n", (unsigned long)rounds, (unsigned long)steps,
	       (unsigned long)differences);
	return differences != 0;
}
