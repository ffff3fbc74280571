/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The raw system call. It returns -errno, as the functions of a vDSO do. */
#ifndef FASTPATH_SYSCALL_H
#define FASTPATH_SYSCALL_H

#include "compiler.h"
#include "isa.h"
#include "record.h"

FP_INLINE long fp_syscall3(long number, long a, long b, long c) {
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x8 __asm__("x8") = number;

	__asm__ volatile("svc #0\n1:" FP_RECORD("system_calls", "1b")
			 : "+r"(x0)
			 : "r"(x8), "r"(x1), "r"(x2)
			 : "memory");
	return x0;
}

#endif
