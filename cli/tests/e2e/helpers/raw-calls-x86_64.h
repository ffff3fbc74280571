/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* raw-calls.c for x86-64. */

/* Registers in the order in which `call_with` stores them. */
enum { RAX, RBX, RCX, RDX, RSI, RDI, RBP, R8, R9, R10, R11, R12, R13, R14, R15, FLAGS, REGISTERS };

struct state {
	uint64_t registers[REGISTERS];
	_Alignas(16) unsigned char vectors[16][16];
	uint64_t red_zone[16];
};

/* Carry, parity, adjust, zero, sign, direction, overflow. */
enum { ARITHMETIC = 0x8d5, DIRECTION = 0x400, TRAP = 0x100 };

/* A system call's arguments and its result. */
enum { FIRST = RDI, SECOND = RSI, RESULT = RAX };
enum {
	CLOCK_GETTIME = SYS_clock_gettime,
	GETTIMEOFDAY = SYS_gettimeofday,
	TIME = SYS_time,
	CLOCK_GETRES = SYS_clock_getres,
	GETCPU = SYS_getcpu
};

/*
 * Each makes one system call for time with the registers, flags and red zone of `before`, and stores those after it.
 * The sites are of all forms: the number right before the call, further before it, and a label in between. Padding is
 * near.
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
	    "	lea 64(%rsp), %rsp\n	popf\n	lea -72(%rsp), %rsp\n	mov %rsi, %rsi\n" site                         \
	    "	lea -8(%rsp), %rsp\n	lea 8(%rsp), %rsp\n"                     /* a step after the call */           \
	    "	jmp 8f\n	.balign 16, 0xcc\n	.fill 16, 1, 0xcc\n8:\n" /* as between functions */            \
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
CALL_WITH(clock_getres_at_once, 229, "	mov $229, %eax\n	syscall\n");
CALL_WITH(getcpu_at_once, 309, "	mov $309, %eax\n	syscall\n");

static const struct form forms[] = {
    {"clock_gettime", clock_gettime_at_once, 228},
    {"clock_gettime, number set early", clock_gettime_early, 228},
    {"clock_gettime, label before the call", clock_gettime_label, 228},
    {"gettimeofday", gettimeofday_at_once, 96},
    {"time", time_at_once, 201},
    {"clock_getres", clock_getres_at_once, 229},
    {"getcpu", getcpu_at_once, 309},
};

static long by_kernel(long number, uintptr_t first, uintptr_t second) {
	long result;

	number_in_memory = number;
	result = number_in_memory;
	__asm__ volatile("syscall" : "+a"(result) : "D"(first), "S"(second) : "rcx", "r11", "memory");
	return result;
}

/* Returns flags for a call; with `steps`, a signal comes after each instruction. */
static uint64_t flags_of(uint64_t random, int steps) {
	return (random & (ARITHMETIC | DIRECTION)) | 0x2 | (steps ? TRAP : 0);
}

static void compare(const struct form *form, const struct state *before, const struct state *after) {
	static const char *const names[] = {"rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "r8",
					    "r9",  "r10", "r11", "r12", "r13", "r14", "r15", "flags"};
	/* The resume flag is the debugger's; interrupts are always on. */
	uint64_t wanted = before->registers[FLAGS] | 0x202;

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

/* The trap flag needs no preparation. */
static int prepare_steps(void) { return 0; }
