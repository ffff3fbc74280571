/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#ifndef ISA_H
#define ISA_H

/* Defines a function that makes one call by an instruction of its own. */
#define DEFINE_SITE(function, nr)                                                                                      \
	static __attribute__((noinline)) long function(long a, long b, long c) {                                       \
		long result;                                                                                           \
		__asm__ volatile("movl %[number], %%eax\n\tsyscall"                                                    \
				 : "=a"(result)                                                                        \
				 : [number] "i"(nr), "D"(a), "S"(b), "d"(c)                                            \
				 : "rcx", "r11", "memory");                                                            \
		return result;                                                                                         \
	}

/* long truth(number, a, b, c) */
static const unsigned char truth_code[] = {
    0x48, 0x89, 0xf8, /* mov %rdi, %rax */
    0x48, 0x89, 0xf7, /* mov %rsi, %rdi */
    0x48, 0x89, 0xd6, /* mov %rdx, %rsi */
    0x48, 0x89, 0xca, /* mov %rcx, %rdx */
    0x4d, 0x31, 0xd2, /* xor %r10, %r10 */
    0x4d, 0x31, 0xc0, /* xor %r8, %r8 */
    0x4d, 0x31, 0xc9, /* xor %r9, %r9 */
    0x0f, 0x05,       /* syscall */
    0xc3,             /* ret */
};

/* Flags that a program can set: carry, parity, adjust, zero, sign, direction, overflow, alignment check. */
enum { FLAGS_KEPT = 0x40cd5, FLAGS_ALWAYS = 0x202, FLAG_DIRECTION = 0x400, FLAG_ALIGNMENT = 0x40000 };

/* What registers.S loads before a call and stores after it. */
struct registers {
	/* rbx, rdx, rsi, rdi, rbp, r8, r9, r10, r12, r13, r14, r15 */
	unsigned long general[12];
	unsigned long flags;
	unsigned long red_zone[16];
	/* xmm0 to xmm15 */
	unsigned long vector[32];
	unsigned long result;
};

enum { GENERAL = 12, RED_ZONE = 16, VECTOR = 32, ARGUMENT_1 = 3, ARGUMENT_2 = 2, ARGUMENT_3 = 1, STACK_STEP = 8 };

#define GENERAL_NAMES "rbx", "rdx", "rsi", "rdi", "rbp", "r8", "r9", "r10", "r12", "r13", "r14", "r15"

#endif
