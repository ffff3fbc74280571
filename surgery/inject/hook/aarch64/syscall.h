/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#ifndef FASTPATH_HOOK_SYSCALL_H
#define FASTPATH_HOOK_SYSCALL_H

#include "isa.h"

/* Register of a system call's result, in struct fp_call. */
#define FP_RESULT arg[0]

static inline long fp_syscall6(long nr, long a, long b, long c, long d, long e, long f) {
	register long x8 __asm__("x8") = nr;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;
	register long x4 __asm__("x4") = e;
	register long x5 __asm__("x5") = f;
	__asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
	return x0;
}

static inline long fp_syscall4(long nr, long a, long b, long c, long d) { return fp_syscall6(nr, a, b, c, d, 0, 0); }

static inline fp_u64 fp_load(const fp_u64 *p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }

/* Not ordered, because it is only used for an age. */
static inline fp_u64 fp_counter(void) {
	fp_u64 counter;

	__asm__ volatile("mrs %0, cntvct_el0" : "=r"(counter));
	return counter;
}

#endif
