/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* x86-64: the programs that it runs, and how to enter one. */
#ifndef LOADER_ISA_H
#define LOADER_ISA_H

#include <elf.h>
#include <stdint.h>

#define LOADER_MACHINE EM_X86_64
#define LOADER_CLASS ELFCLASS64

/* State as after an exec: the stack pointer at argc, no function to call at exit (RDX), no frame above (RBP). */
_Noreturn static inline void enter_program(uintptr_t entry, const void *stack) {
	__asm__ volatile("mov %1, %%rsp\n\t"
			 "xor %%edx, %%edx\n\t"
			 "xor %%ebp, %%ebp\n\t"
			 "jmp *%0"
			 :
			 : "a"(entry), "c"(stack)
			 : "rdx", "memory");
	__builtin_unreachable();
}

#endif
