/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* x86-64: system calls by __fastpath_syscall. */
#ifndef BENCH_RAW_H
#define BENCH_RAW_H

/* Makes a call by the entry point of an image for hosts. */
static inline long call_by_entry(void *entry, long number, long a, long b, long c) {
	long result;

	__asm__ volatile("lea 1f(%%rip), %%rcx\n\t"
			 "jmp *%1\n\t"
			 "syscall\n1:"
			 : "=a"(result)
			 : "r"(entry), "0"(number), "D"(a), "S"(b), "d"(c)
			 : "rcx", "r11", "memory");
	return result;
}

#endif
