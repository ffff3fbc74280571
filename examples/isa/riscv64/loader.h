/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* RISC-V: the programs that it runs, and how to enter one. */
#ifndef LOADER_ISA_H
#define LOADER_ISA_H

#include <elf.h>
#include <stdint.h>

#define LOADER_MACHINE EM_RISCV
#define LOADER_CLASS ELFCLASS64

/* State as after an exec: the stack pointer at argc, no function to call at exit (A0), no frame above (S0), no
 * caller (RA). */
_Noreturn static inline void enter_program(uintptr_t entry, const void *stack) {
	register uintptr_t to __asm__("t1") = entry;
	register const void *sp __asm__("t2") = stack;

	__asm__ volatile("mv sp, %1\n\t"
			 "li a0, 0\n\t"
			 "li s0, 0\n\t"
			 "li ra, 0\n\t"
			 "jr %0"
			 :
			 : "r"(to), "r"(sp)
			 : "a0", "ra", "memory");
	__builtin_unreachable();
}

#endif
