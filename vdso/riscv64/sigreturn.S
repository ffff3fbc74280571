/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The return address of signal handlers. Debuggers and unwinders recognize it by these two instructions, as well as
 * by its unwind information, which describes where in the signal frame the interrupted registers are. The pc has the
 * column 64, DWARF's alternate frame return column for RISC-V: ra is a register of its own there.
 *
 * Unwinders look a return address up by the byte before it, so the description also covers the no-op in front.
 */
#include "isa.h"

/* struct rt_sigframe (arch/riscv/kernel/signal.c): 128 bytes of siginfo, then struct ucontext, whose registers begin
 * at byte 176: pc, then x1 to x31. The CFA is their end, which takes the fewest bytes to describe; the interrupted
 * stack pointer is among them. */
#define REGISTERS_END (128 + 176 + 32 * 8)
#define PC 64

	.text
	.balign 4
	.cfi_startproc simple
	.cfi_signal_frame
	.cfi_return_column PC
	.cfi_def_cfa sp, REGISTERS_END
	.cfi_offset PC, -32 * 8
	.irp x, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
	.cfi_offset \x, (\x - 32) * 8
	.endr
	nop
	.globl __vdso_rt_sigreturn
	.type __vdso_rt_sigreturn, %function
__vdso_rt_sigreturn:
	li	a7, FP_NR_rt_sigreturn
	ecall
	.size __vdso_rt_sigreturn, . - __vdso_rt_sigreturn
	.cfi_endproc

	.section .note.GNU-stack, "", %progbits
