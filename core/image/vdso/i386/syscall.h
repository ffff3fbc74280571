/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The raw system call. It returns -errno, as the functions of a vDSO do. */
#ifndef FASTPATH_SYSCALL_H
#define FASTPATH_SYSCALL_H

#include "compiler.h"
#include "isa.h"
#include "record.h"

/*
 * `int $0x80` and not the kernel's faster entry, which is only reachable through its vDSO: a process with a vDSO
 * uses that vDSO's functions and does not get here.
 */
FP_INLINE long fp_syscall3(long number, long a, long b, long c) {
	long result;

	__asm__ volatile("int $0x80\n1:" FP_RECORD("system_calls", "1b")
			 : "=a"(result)
			 : "0"(number), "b"(a), "c"(b), "d"(c)
			 : "memory");
	return result;
}

FP_INLINE long fp_syscall2(long number, long a, long b) {
	long result;

	__asm__ volatile("int $0x80\n1:" FP_RECORD("system_calls", "1b")
			 : "=a"(result)
			 : "0"(number), "b"(a), "c"(b)
			 : "memory");
	return result;
}

FP_INLINE long fp_syscall1(long number, long a) {
	long result;

	__asm__ volatile("int $0x80\n1:" FP_RECORD("system_calls", "1b")
			 : "=a"(result)
			 : "0"(number), "b"(a)
			 : "memory");
	return result;
}

#endif
