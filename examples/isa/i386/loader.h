/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* i386: the programs that it runs, and how to enter one. */
#ifndef LOADER_ISA_H
#define LOADER_ISA_H

#include <elf.h>
#include <stdint.h>

#define LOADER_MACHINE EM_386
#define LOADER_CLASS ELFCLASS32

/* State as after an exec: the stack pointer at argc, no function to call at exit (EDX), no frame above (EBP). */
_Noreturn static inline void enter_program(uintptr_t entry, const void *stack) {
	__asm__ volatile("mov %1, %%esp\n\t"
			 "xor %%edx, %%edx\n\t"
			 "xor %%ebp, %%ebp\n\t"
			 "jmp *%0"
			 :
			 : "a"(entry), "c"(stack)
			 : "edx", "memory");
	__builtin_unreachable();
}

#endif
