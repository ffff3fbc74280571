/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* AArch64: the programs that it runs, and how to enter one. */
#ifndef LOADER_ISA_H
#define LOADER_ISA_H

#include <elf.h>
#include <stdint.h>

#define LOADER_MACHINE EM_AARCH64
#define LOADER_CLASS ELFCLASS64

/* State as after an exec: the stack pointer at argc, no function to call at exit (X0), no frame above (X29), no
 * caller (X30). */
_Noreturn static inline void enter_program(uintptr_t entry, const void *stack) {
	register uintptr_t to __asm__("x16") = entry;
	register const void *sp __asm__("x17") = stack;

	__asm__ volatile("mov sp, %1\n\t"
			 "mov x0, #0\n\t"
			 "mov x29, #0\n\t"
			 "mov x30, #0\n\t"
			 "br %0"
			 :
			 : "r"(to), "r"(sp)
			 : "x0", "x30", "memory");
	__builtin_unreachable();
}

#endif
