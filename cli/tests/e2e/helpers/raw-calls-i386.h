/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* raw-calls.c for i386. */

/* Registers in the order in which `call_with` stores them. */
enum { EAX, EBX, ECX, EDX, ESI, EDI, EBP, FLAGS, REGISTERS };

struct state {
	uint32_t registers[REGISTERS];
	_Alignas(16) unsigned char vectors[8][16];
};

/* A system call's arguments and its result. */
enum { FIRST = EBX, SECOND = ECX, RESULT = EAX };
/* Numbers: arch/x86/entry/syscalls/syscall_32.tbl. */
enum { CLOCK_GETTIME = 265, GETTIMEOFDAY = 78, TIME = 13, CLOCK_GETRES = 266, GETCPU = 318, CLOCK_GETTIME64 = 403 };
/* Carry, parity, adjust, zero, sign, direction, overflow. */
enum { ARITHMETIC = 0x8d5, DIRECTION = 0x400, TRAP = 0x100 };

/*
 * Each makes one system call for time with the registers and flags of `before`, and stores those after it. The sites
 * are of all forms: the number right before the call, further before it, a label in between, so that only what follows
 * the call can be replaced, and the C library's way to the kernel's function.
 */
#define CALL_WITH(name, site)                                                                                          \
	void name(const struct state *before, struct state *after);                                                    \
	__asm__(".text\n.type " #name ", @function\n" #name ":\n"                                                      \
		"	push %ebx\n	push %ebp\n	push %esi\n	push %edi\n	sub $64, %esp\n"                                     \
		"	mov 84(%esp), %eax\n"                                                                                \
		"	.irp i, 0, 1, 2, 3, 4, 5, 6, 7\n	movups 32 + 16 * \\i(%eax), %xmm\\i\n	.endr\n"                      \
		"	mov 4(%eax), %ebx\n	mov 8(%eax), %ecx\n	mov 12(%eax), %edx\n	mov 16(%eax), %esi\n"                   \
		"	mov 20(%eax), %edi\n	mov 24(%eax), %ebp\n	pushl 28(%eax)\n	mov (%eax), %eax\n"                       \
		"	popf\n" site "	lea (%esp), %esp\n" /* a step after the call */                                \
		"	mov %eax, (%esp)\n	mov %ecx, 4(%esp)\n	pushf\n	popl 8(%esp)\n"                                       \
		"	testl $0x100, 8(%esp)\n	jz 7f\n" /* end the steps */                                           \
		"	pushl 8(%esp)\n	andl $~0x100, (%esp)\n	popf\n"                                                       \
		"7:	cld\n	mov 88(%esp), %eax\n"                                                                        \
		"	mov %ebx, 4(%eax)\n	mov %edx, 12(%eax)\n	mov %esi, 16(%eax)\n	mov %edi, 20(%eax)\n"                  \
		"	mov %ebp, 24(%eax)\n	mov (%esp), %ecx\n	mov %ecx, (%eax)\n"                                          \
		"	mov 4(%esp), %ecx\n	mov %ecx, 8(%eax)\n	mov 8(%esp), %ecx\n	mov %ecx, 28(%eax)\n"                    \
		"	.irp i, 0, 1, 2, 3, 4, 5, 6, 7\n	movups %xmm\\i, 32 + 16 * \\i(%eax)\n	.endr\n"                      \
		"	add $64, %esp\n	pop %edi\n	pop %esi\n	pop %ebp\n	pop %ebx\n	ret\n"                                   \
		".size " #name ", . - " #name "\n")

CALL_WITH(clock_gettime_at_once, "	mov $265, %eax\n	int $0x80\n");
CALL_WITH(clock_gettime_early,
	  "	mov $265, %eax\n	mov %esi, %esi\n	lea 0(%edi), %edi\n	int $0x80\n");
CALL_WITH(clock_gettime_label,
	  "	mov $265, %eax\n5:	mov %esi, %esi\n	int $0x80\n	.byte 0x8d, 0x76, 0\n"
	  "	jmp 6f\n	jmp 5b\n6:\n");
CALL_WITH(clock_gettime_by_libc, "	mov $265, %eax\n	call *%gs:0x10\n");
CALL_WITH(clock_gettime64_at_once, "	mov $403, %eax\n	int $0x80\n");
CALL_WITH(gettimeofday_at_once, "	mov $78, %eax\n	int $0x80\n");
CALL_WITH(time_at_once, "	mov $13, %eax\n	int $0x80\n");
CALL_WITH(clock_getres_at_once, "	mov $266, %eax\n	int $0x80\n");
CALL_WITH(getcpu_at_once, "	mov $318, %eax\n	int $0x80\n");

static const struct form forms[] = {
    {"clock_gettime", clock_gettime_at_once, CLOCK_GETTIME},
    {"clock_gettime, number set early", clock_gettime_early, CLOCK_GETTIME},
    {"clock_gettime, label before the call", clock_gettime_label, CLOCK_GETTIME},
    {"clock_gettime, by the kernel's function", clock_gettime_by_libc, CLOCK_GETTIME},
    {"clock_gettime64", clock_gettime64_at_once, CLOCK_GETTIME64},
    {"gettimeofday", gettimeofday_at_once, GETTIMEOFDAY},
    {"time", time_at_once, TIME},
    {"clock_getres", clock_getres_at_once, CLOCK_GETRES},
    {"getcpu", getcpu_at_once, GETCPU},
};

static long by_kernel(long number, uintptr_t first, uintptr_t second) {
	long result;

	number_in_memory = number;
	result = number_in_memory;
	__asm__ volatile("int $0x80" : "+a"(result) : "b"(first), "c"(second) : "memory");
	return result;
}

/* Returns flags for a call; with `steps`, a signal comes after each instruction. */
static uintptr_t flags_of(uint64_t random, int steps) {
	return (random & (ARITHMETIC | DIRECTION)) | 0x2 | (steps ? TRAP : 0);
}

static void compare(const struct form *form, const struct state *before, const struct state *after) {
	static const char *const names[] = {"eax", "ebx", "ecx", "edx", "esi", "edi", "ebp", "flags"};

	for (int i = EBX; i < FLAGS; i++) {
		if (after->registers[i] != before->registers[i]) {
			difference(form->name, names[i], after->registers[i], before->registers[i]);
		}
	}
	/* The resume flag is the debugger's; interrupts are always on. */
	if ((after->registers[FLAGS] & ~0x10000U) != (before->registers[FLAGS] | 0x202)) {
		difference(form->name, "flags", after->registers[FLAGS], before->registers[FLAGS] | 0x202);
	}
	if (memcmp(before->vectors, after->vectors, sizeof(before->vectors)) != 0) {
		difference(form->name, "vector registers", 1, 0);
	}
}

/* The trap flag needs no preparation. */
static int prepare_steps(void) { return 0; }
