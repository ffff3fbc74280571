/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#ifndef ISA_H
#define ISA_H

/* Defines a function that makes one call by an instruction of its own. */
#define DEFINE_SITE(function, nr)                                                                                      \
	static __attribute__((noinline)) long function(long a, long b, long c) {                                       \
		register long x0 __asm__("x0") = a;                                                                    \
		register long x1 __asm__("x1") = b;                                                                    \
		register long x2 __asm__("x2") = c;                                                                    \
		__asm__ volatile("mov x8, %[number]\n\tsvc #0"                                                         \
				 : "+r"(x0)                                                                            \
				 : [number] "i"(nr), "r"(x1), "r"(x2)                                                  \
				 : "x8", "memory");                                                                    \
		return x0;                                                                                             \
	}

/* long truth(number, a, b, c) */
static const unsigned int truth_code[] = {
    0xaa0003e8, /* mov x8, x0 */
    0xaa0103e0, /* mov x0, x1 */
    0xaa0203e1, /* mov x1, x2 */
    0xaa0303e2, /* mov x2, x3 */
    0xaa1f03e3, /* mov x3, xzr */
    0xaa1f03e4, /* mov x4, xzr */
    0xaa1f03e5, /* mov x5, xzr */
    0xd4000001, /* svc #0 */
    0xd65f03c0, /* ret */
};

/* The condition flags. */
enum { FLAGS_KEPT = (int)0xf0000000, FLAGS_ALWAYS = 0, FLAG_DIRECTION = 0, FLAG_ALIGNMENT = 0 };

/* What registers.S loads before a call and stores after it. */
struct registers {
	/* x1 to x7, x9 to x17, x19 to x30 */
	unsigned long general[28];
	unsigned long flags;
	/* There is no red zone. */
	unsigned long red_zone[1];
	/* v0 to v31 */
	unsigned long vector[64];
	/* Before the call, the first argument. */
	unsigned long result;
};

enum { GENERAL = 28, RED_ZONE = 0, VECTOR = 64, ARGUMENT_2 = 0, ARGUMENT_3 = 1, STACK_STEP = 16 };
#define ARGUMENT_1_IS_RESULT 1

#define GENERAL_NAMES                                                                                                  \
	"x1", "x2", "x3", "x4", "x5", "x6", "x7", "x9", "x10", "x11", "x12", "x13", "x14", "x15", "x16", "x17", "x19", \
	    "x20", "x21", "x22", "x23", "x24", "x25", "x26", "x27", "x28", "x29", "x30"

#endif
