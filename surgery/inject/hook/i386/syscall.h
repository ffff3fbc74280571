/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#ifndef FASTPATH_HOOK_SYSCALL_H
#define FASTPATH_HOOK_SYSCALL_H

#include "isa.h"

/* Register of a system call's result, in struct fp_call. */
#define FP_RESULT nr

/* In hook.S: the arguments take all registers. */
__attribute__((visibility("hidden"))) long fp_syscall6(long nr, long a, long b, long c, long d, long e, long f);

static inline long fp_syscall4(long nr, long a, long b, long c, long d) { return fp_syscall6(nr, a, b, c, d, 0, 0); }

/* Not ordered, because it is only used for an age. */
static inline fp_u64 fp_counter(void) { return __builtin_ia32_rdtsc(); }

/* In halves: the instructions that load 64 bits at once need the FPU, or writable memory. */
static inline fp_u64 fp_load(const fp_u64 *p) {
	const fp_u32 *half = (const fp_u32 *)(const void *)p;
	fp_u32 high = __atomic_load_n(&half[1], __ATOMIC_ACQUIRE);
	for (;;) {
		fp_u32 low = __atomic_load_n(&half[0], __ATOMIC_ACQUIRE);
		fp_u32 again = __atomic_load_n(&half[1], __ATOMIC_ACQUIRE);
		if (again == high)
			return (fp_u64)high << 32 | low;
		high = again;
	}
}

#endif
