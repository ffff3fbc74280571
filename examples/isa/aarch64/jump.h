/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* AArch64: system calls by __fastpath_syscall of an image for hosts. */
#ifndef JUMP_H
#define JUMP_H

/*
 * Jumps to the entry point. It continues at the label if it has answered, and three instructions before it if not.
 */
static inline long jump_to_entry(unsigned long entry, long number, long a, long b, long c) {
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x8 __asm__("x8") = number;

	__asm__ volatile("stp x16, x17, [sp, #-16]!\n\t"
			 "mov x17, %[entry]\n\t"
			 "adr x16, 1f\n\t"
			 "br x17\n\t"
			 "ldp x16, x17, [sp], #16\n\t"
			 "svc #0\n\t"
			 "b 2f\n"
			 "1:\n\t"
			 "ldp x16, x17, [sp], #16\n"
			 "2:"
			 : "+r"(x0)
			 : [entry] "r"(entry), "r"(x1), "r"(x2), "r"(x8)
			 : "memory");
	return x0;
}

#endif
