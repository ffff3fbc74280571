/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The raw system call. It returns -errno, as the functions of a vDSO do. */
#ifndef FASTPATH_SYSCALL_H
#define FASTPATH_SYSCALL_H

#include "compiler.h"
#include "isa.h"
#include "record.h"

FP_INLINE long fp_syscall3(long number, long a, long b, long c) {
	register long a0 __asm__("a0") = a;
	register long a1 __asm__("a1") = b;
	register long a2 __asm__("a2") = c;
	register long a7 __asm__("a7") = number;

	__asm__ volatile("ecall\n1:" FP_RECORD("system_calls", "1b") : "+r"(a0) : "r"(a7), "r"(a1), "r"(a2) : "memory");
	return a0;
}

#endif
