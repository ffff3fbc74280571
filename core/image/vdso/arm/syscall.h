/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The raw system call. It returns -errno, as the functions of a vDSO do. */
#ifndef FASTPATH_SYSCALL_H
#define FASTPATH_SYSCALL_H

#include "compiler.h"
#include "isa.h"
#include "record.h"

FP_INLINE long fp_syscall2(long number, long a, long b) {
	register long r0 __asm__("r0") = a;
	register long r1 __asm__("r1") = b;
	register long r7 __asm__("r7") = number;

	__asm__ volatile("svc #0\n1:" FP_RECORD("system_calls", "1b") : "+r"(r0) : "r"(r7), "r"(r1) : "memory");
	return r0;
}

#endif
