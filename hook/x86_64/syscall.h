/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#ifndef FASTPATH_HOOK_SYSCALL_H
#define FASTPATH_HOOK_SYSCALL_H

#include "isa.h"

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

/* Reads the counter in the counts of the page's anchors: vdso/page.h, FP_PAGE_OFFSETS. */
static inline fp_u64 fp_counter_of_page(const struct fp_page *page) {
	unsigned cpu;

	if (!(page->header.flags & FP_PAGE_OFFSETS))
		return fp_counter();
	fp_u64 counter = __builtin_ia32_rdtscp(&cpu);
	cpu &= FP_OFFSETS - 1;
	return counter - ((fp_u64)(long long)page->offsets.high[cpu] << 32) - page->offsets.low[cpu];
}

#endif
