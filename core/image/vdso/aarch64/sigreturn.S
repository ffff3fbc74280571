/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The return address of signal handlers. They return by a RET: it needs no landing pad, and must not have one,
 * because debuggers and unwinders recognize it by these two instructions.
 *
 * Its unwind information describes the frame record that the kernel leaves on the signal frame, with x29 pointing at
 * it: the interrupted x29 and pc. Unwinders find the other registers by the layout of a signal frame, which they all
 * know here; DWARF has no number for a pc beside x30 that all of them accept.
 *
 * Unwinders look a return address up by the byte before it, so the description also covers the no-op in front.
 */
#include "isa.h"

	.text
	.balign 16
	.cfi_startproc
	.cfi_signal_frame
	.cfi_def_cfa x29, 0
	.cfi_offset x29, 0
	.cfi_offset x30, 8
	nop
	.globl __kernel_rt_sigreturn
	.type __kernel_rt_sigreturn, %function
__kernel_rt_sigreturn:
	mov	x8, #FP_NR_rt_sigreturn
	svc	#0
	.size __kernel_rt_sigreturn, . - __kernel_rt_sigreturn
	.cfi_endproc

	.section .note.GNU-stack, "", %progbits
