/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* raw-calls.c for AArch64. */

/* Registers in the order in which `call_with` stores them. */
enum { X0, X1, X8 = 8, X30 = 30, FLAGS, REGISTERS };

struct state {
	uint64_t registers[REGISTERS];
	_Alignas(16) unsigned char vectors[32][16];
};

/* A system call's arguments and its result. */
enum { FIRST = X0, SECOND = X1, RESULT = X0 };
enum {
	CLOCK_GETTIME = SYS_clock_gettime,
	GETTIMEOFDAY = SYS_gettimeofday,
	CLOCK_GETRES = SYS_clock_getres,
	TIME = -1,
	GETCPU = -2
};

/* Each makes one system call for time with the registers and flags of `before`, and stores those after it. */
#define CALL_WITH(name, site)                                                                                          \
	void name(const struct state *before, struct state *after);                                                    \
	__asm__(                                                                                                       \
	    ".text\n.type " #name ", %function\n" #name ":\n"                                                          \
	    "	stp x29, x30, [sp, #-192]!\n	stp x19, x20, [sp, #16]\n	stp x21, x22, [sp, #32]\n"                        \
	    "	stp x23, x24, [sp, #48]\n	stp x25, x26, [sp, #64]\n	stp x27, x28, [sp, #80]\n"                           \
	    "	stp d8, d9, [sp, #96]\n	stp d10, d11, [sp, #112]\n	stp d12, d13, [sp, #128]\n"                           \
	    "	stp d14, d15, [sp, #144]\n	str x1, [sp, #160]\n	add x9, x0, #256\n"                                      \
	    "	.irp q, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30\n	.set i, \\q * 16\n"                  \
	    "	ldr q\\q, [x9, #i]\n	.endr\n"                                                                            \
	    "	.irp q, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31\n	.set i, \\q * 16\n"                  \
	    "	ldr q\\q, [x9, #i]\n	.endr\n"                                                                            \
	    "	ldr x9, [x0, #248]\n	msr nzcv, x9\n"                                                                     \
	    "	.irp x, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20\n"                         \
	    "	ldr x\\x, [x0, #\\x * 8]\n	.endr\n"                                                                      \
	    "	.irp x, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 0\n	ldr x\\x, [x0, #\\x * 8]\n	.endr\n" site  \
	    "	stp x0, x1, [sp, #168]\n	ldr x0, [sp, #160]\n"                                                           \
	    "	.irp x, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20\n"                         \
	    "	str x\\x, [x0, #\\x * 8]\n	.endr\n"                                                                      \
	    "	.irp x, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30\n	str x\\x, [x0, #\\x * 8]\n	.endr\n"                     \
	    "	mrs x1, nzcv\n	str x1, [x0, #248]\n	ldr x1, [sp, #168]\n	str x1, [x0]\n"                                 \
	    "	add x9, x0, #256\n"                                                                                      \
	    "	.irp q, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30\n	.set i, \\q * 16\n"                  \
	    "	str q\\q, [x9, #i]\n	.endr\n"                                                                            \
	    "	.irp q, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31\n	.set i, \\q * 16\n"                  \
	    "	str q\\q, [x9, #i]\n	.endr\n"                                                                            \
	    "	ldp x19, x20, [sp, #16]\n	ldp x21, x22, [sp, #32]\n	ldp x23, x24, [sp, #48]\n"                           \
	    "	ldp x25, x26, [sp, #64]\n	ldp x27, x28, [sp, #80]\n	ldp d8, d9, [sp, #96]\n"                             \
	    "	ldp d10, d11, [sp, #112]\n	ldp d12, d13, [sp, #128]\n	ldp d14, d15, [sp, #144]\n"                        \
	    "	ldp x29, x30, [sp], #192\n	ret\n.size " #name ", . - " #name "\n")

CALL_WITH(clock_gettime_at_once, "	mov x8, #113\n	svc #0\n");
CALL_WITH(clock_gettime_early, "	mov w8, #113\n	mov x2, x2\n	add x3, x3, #0\n	svc #0\n");
CALL_WITH(gettimeofday_at_once, "	mov x8, #169\n	svc #0\n");
CALL_WITH(clock_getres_at_once, "	mov x8, #114\n	svc #0\n");

static const struct form forms[] = {
    {"clock_gettime", clock_gettime_at_once, CLOCK_GETTIME},
    {"clock_gettime, number set early", clock_gettime_early, CLOCK_GETTIME},
    {"gettimeofday", gettimeofday_at_once, GETTIMEOFDAY},
    {"clock_getres", clock_getres_at_once, CLOCK_GETRES},
};

static long by_kernel(long number, uintptr_t first, uintptr_t second) {
	register uint64_t x0 __asm__("x0") = first;
	register uint64_t x1 __asm__("x1") = second;
	volatile long *source = &number_in_memory;

	*source = number;
	__asm__ volatile("ldr x8, [%[source]]\n	svc #0" : "+r"(x0) : "r"(x1), [source] "r"(source) : "x8", "memory");
	return (long)x0;
}

static uint64_t flags_of(uint64_t random, int steps) {
	(void)steps;
	return random & 0xf0000000; /* NZCV */
}

static void compare(const struct form *form, const struct state *before, const struct state *after) {
	for (int i = X1; i < REGISTERS; i++) {
		uint64_t wanted = i == X8 ? (uint64_t)form->number : before->registers[i];
		char name[] = {'x', (char)('0' + i / 10), (char)('0' + i % 10), 0};

		if (after->registers[i] != wanted) {
			difference(form->name, i == FLAGS ? "flags" : name, after->registers[i], wanted);
		}
	}
	if (memcmp(before->vectors, after->vectors, sizeof(before->vectors)) != 0) {
		difference(form->name, "vector registers", 1, 0);
	}
}

/* User space cannot step itself: a timer of the thread interrupts it anywhere. */
static int prepare_steps(void) {
	struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGTRAP};
	struct itimerspec often = {{0, 150000}, {0, 150000}};
	timer_t timer;

	event._sigev_un._tid = (pid_t)syscall(SYS_gettid);
	return timer_create(CLOCK_MONOTONIC, &event, &timer) || timer_settime(timer, 0, &often, NULL);
}
