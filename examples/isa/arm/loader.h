/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Arm: the programs that it runs, and how to enter one. */
#ifndef LOADER_ISA_H
#define LOADER_ISA_H

#include <elf.h>
#include <stdint.h>

#define LOADER_MACHINE EM_ARM
#define LOADER_CLASS ELFCLASS32

/* State as after an exec: the stack pointer at argc, no function to call at exit (R0), no caller (LR). BX takes bit
 * 0 for Thumb. */
_Noreturn static inline void enter_program(uintptr_t entry, const void *stack) {
	__asm__ volatile("mov sp, %1\n\t"
			 "mov r0, #0\n\t"
			 "mov lr, #0\n\t"
			 "bx %0"
			 :
			 : "r"(entry), "r"(stack)
			 : "r0", "lr", "memory");
	__builtin_unreachable();
}

#endif
