/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#ifndef FASTPATH_HOOK_SYSCALL_H
#define FASTPATH_HOOK_SYSCALL_H

#include "isa.h"

/* Register of a system call's result, in struct fp_call. */
#define FP_RESULT arg[0]

static inline long fp_syscall6(long nr, long a, long b, long c, long d, long e, long f) {
	register long r7 __asm__("r7") = nr;
	register long r0 __asm__("r0") = a;
	register long r1 __asm__("r1") = b;
	register long r2 __asm__("r2") = c;
	register long r3 __asm__("r3") = d;
	register long r4 __asm__("r4") = e;
	register long r5 __asm__("r5") = f;
	__asm__ volatile("svc #0" : "+r"(r0) : "r"(r7), "r"(r1), "r"(r2), "r"(r3), "r"(r4), "r"(r5) : "memory");
	return r0;
}

static inline long fp_syscall4(long nr, long a, long b, long c, long d) { return fp_syscall6(nr, a, b, c, d, 0, 0); }

static inline fp_u64 fp_load(const fp_u64 *p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }

/* Not ordered, because it is only used for an age. */
static inline fp_u64 fp_counter(void) {
	fp_u64 counter;

	__asm__ volatile("mrrc p15, 1, %Q0, %R0, c14" : "=r"(counter));
	return counter;
}

#endif
