/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Functions of the kernel's vDSO that are passed on, with the stack as it came. A process whose kernel does not have one of
 * them does not find its name here either (crates/image hides it), so the slot is never 0 when it is used.
 */
#include "slots.h"

	.text
	.globl __vdso_clock_getres_time64
	.type __vdso_clock_getres_time64, @function
__vdso_clock_getres_time64:
	.cfi_startproc
	call	fp_here
1:	jmp	*fp_slots + 4 * FP_SLOT_CLOCK_GETRES_TIME64 - 1b(%eax)
	.cfi_endproc
	.size __vdso_clock_getres_time64, . - __vdso_clock_getres_time64

/*
 * What the image's own code goes back to: the kernel's function, or the one that makes the system call. An instance has the
 * distance to it here, as it has the address in the slot.
 */
	.cfi_startproc
	.macro kernel function
	.globl fp_kernel_\function
	.hidden fp_kernel_\function
	.hidden fp_call_\function
	.type fp_kernel_\function, @function
fp_kernel_\function:
	.byte	0xe9			/* jmp, with 32 bits however near it is */
	.long	fp_call_\function - . - 4
	.size fp_kernel_\function, . - fp_kernel_\function
	.endm

	kernel clock_gettime
	kernel clock_gettime64
	kernel gettimeofday
	kernel clock_getres
	.cfi_endproc

	.section .note.GNU-stack, "", @progbits
