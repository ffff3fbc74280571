/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Functions of the kernel's vDSO that are passed on, with the stack unchanged. A process whose kernel lacks one of
 * them does not find its name here either (core/image hides it), so the slot is never 0 when it is used.
 */
#include "isa.h"

	.text
	.globl __vdso_clock_getres_time64
	.type __vdso_clock_getres_time64, @function
__vdso_clock_getres_time64:
	.cfi_startproc
	call	fp_here
1:	jmp	*fp_slots + FP_SLOT_clock_getres_time64 - 1b(%eax)
	.cfi_endproc
	.size __vdso_clock_getres_time64, . - __vdso_clock_getres_time64

	.section .note.GNU-stack, "", @progbits
