/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The raw system call. It returns -errno, as the functions of a vDSO do. */
#ifndef FASTPATH_SYSCALL_H
#define FASTPATH_SYSCALL_H

#include "compiler.h"
#include "isa.h"
#include "record.h"

FP_INLINE long fp_syscall3(long number, long a, long b, long c) {
	long result;

	__asm__ volatile("syscall\n1:" FP_RECORD("system_calls", "1b")
			 : "=a"(result)
			 : "0"(number), "D"(a), "S"(b), "d"(c)
			 : "rcx", "r11", "memory");
	return result;
}

FP_INLINE long fp_syscall1(long number, long a) {
	long result;

	__asm__ volatile("syscall\n1:" FP_RECORD("system_calls", "1b")
			 : "=a"(result)
			 : "0"(number), "D"(a)
			 : "rcx", "r11", "memory");
	return result;
}

#endif
