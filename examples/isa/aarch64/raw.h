/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* AArch64: system calls by __fastpath_syscall. */
#ifndef BENCH_RAW_H
#define BENCH_RAW_H

/* Makes a call by the entry point of an image for hosts. */
static inline long call_by_entry(void *entry, long number, long a, long b, long c) {
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x8 __asm__("x8") = number;
	register void *x9 __asm__("x9") = entry;

	__asm__ volatile("stp x16, x17, [sp, #-16]!\n\t"
			 "adr x16, 1f\n\t"
			 "br x9\n\t"
			 "ldp x16, x17, [sp], #16\n\t"
			 "svc #0\n\t"
			 "b 2f\n"
			 "1:\n\t"
			 "ldp x16, x17, [sp], #16\n"
			 "2:"
			 : "+r"(x0)
			 : "r"(x1), "r"(x2), "r"(x8), "r"(x9)
			 : "memory");
	return x0;
}

#endif
