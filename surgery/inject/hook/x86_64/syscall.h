/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#ifndef FASTPATH_HOOK_SYSCALL_H
#define FASTPATH_HOOK_SYSCALL_H

#include "isa.h"

/* Register of a system call's result, in struct fp_call. */
#define FP_RESULT nr

static inline long fp_syscall6(long nr, long a, long b, long c, long d, long e, long f) {
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;
	long result;
	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return result;
}

static inline long fp_syscall4(long nr, long a, long b, long c, long d) { return fp_syscall6(nr, a, b, c, d, 0, 0); }

static inline fp_u64 fp_load(const fp_u64 *p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }

/* Not ordered, because it is only used for an age. */
static inline fp_u64 fp_counter(void) { return __builtin_ia32_rdtsc(); }

#endif
