/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* x86-64: system calls by __fastpath_syscall of an image for hosts. */
#ifndef JUMP_H
#define JUMP_H

/*
 * Jumps to the entry point. It continues at the label if it has answered, and before it, at the instruction, if not.
 */
static inline long jump_to_entry(unsigned long entry, long number, long a, long b, long c) {
	long result = number;

	__asm__ volatile("leaq 1f(%%rip), %%rcx\n\t"
			 "jmp *%[entry]\n\t"
			 "syscall\n"
			 "1:"
			 : "+a"(result)
			 : [entry] "r"(entry), "D"(a), "S"(b), "d"(c)
			 : "rcx", "r11", "memory");
	return result;
}

#endif
