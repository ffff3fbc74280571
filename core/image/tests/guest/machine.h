/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The startup code and system calls of each ISA, for a program without a C library. */
#ifndef MACHINE_H
#define MACHINE_H

#include "isa.h"

void run(void);

/* struct sigaction of the kernel, for a handler that returns to `restorer`. The mask is 0. */
#define SA_RESTORER 0x04000000
#define SIGNAL_ACTION(handler, flags, restorer)                                                                        \
	(unsigned long)(handler), (flags) | SA_RESTORER, (unsigned long)(restorer)

/* For ISAs without one. */
#define NO_VSYSCALL                                                                                                    \
	static inline long vsyscall(unsigned long entry, long number, long a, long b) {                                \
		(void)entry, (void)number, (void)a, (void)b;                                                           \
		return -1;                                                                                             \
	}

#if defined(__x86_64__)

__asm__(".globl _start\n_start: and $-16, %rsp\n call run");

static inline long system_call(long number, long a, long b, long c, long d) {
	register long r10 __asm__("r10") = d;
	long result;

	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "0"(number), "D"(a), "S"(b), "d"(c), "r"(r10)
			 : "rcx", "r11", "memory");
	return result;
}
NO_VSYSCALL

#elif defined(__i386__)

__asm__(".globl _start\n_start: and $-16, %esp\n call run");

static inline long system_call(long number, long a, long b, long c, long d) {
	long result;

	__asm__ volatile("int $0x80" : "=a"(result) : "0"(number), "b"(a), "c"(b), "d"(c), "S"(d) : "memory");
	return result;
}

/* Calls like the C library does by AT_SYSINFO: every other register must be preserved. */
static inline long vsyscall(unsigned long entry, long number, long a, long b) {
	long result, kept_b = a, kept_c = b, kept_d = 77, kept_s = 78;

	__asm__ volatile("call *%%edi"
			 : "=a"(result), "+b"(kept_b), "+c"(kept_c), "+d"(kept_d), "+S"(kept_s)
			 : "0"(number), "D"(entry)
			 : "memory");
	return kept_b == a && kept_c == b && kept_d == 77 && kept_s == 78 ? result : -999;
}

#elif defined(__aarch64__)

__asm__(".globl _start\n_start: bl run");

static inline long system_call(long number, long a, long b, long c, long d) {
	register long x8 __asm__("x8") = number;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;

	__asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
	return x0;
}
NO_VSYSCALL

#elif defined(__arm__)

/* qemu-user has no counter for Arm. */
#define NO_COUNTER

__asm__(".globl _start\n_start: bl run");

static inline long system_call(long number, long a, long b, long c, long d) {
	register long r7 __asm__("r7") = number;
	register long r0 __asm__("r0") = a;
	register long r1 __asm__("r1") = b;
	register long r2 __asm__("r2") = c;
	register long r3 __asm__("r3") = d;

	__asm__ volatile("svc #0" : "+r"(r0) : "r"(r7), "r"(r1), "r"(r2), "r"(r3) : "memory");
	return r0;
}
NO_VSYSCALL

#endif
#endif
