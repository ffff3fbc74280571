/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Functions of the kernel's vDSO that are passed on, with the stack unchanged. A process whose kernel lacks one of
 * them does not find its name here either (core/image hides it), so the slot is never 0 when it is used.
 */
#include "isa.h"

	.text
	/* One description for both: it takes less room. */
	.cfi_startproc
	.globl __vdso_clock_getres_time64
	.type __vdso_clock_getres_time64, @function
__vdso_clock_getres_time64:
	call	fp_here
1:	jmp	*fp_slots + FP_SLOT_clock_getres_time64 - 1b(%eax)
	.size __vdso_clock_getres_time64, . - __vdso_clock_getres_time64

/* Returns its own return address. The call and the return match, which keeps the CPU's return prediction correct. */
	.globl fp_here
	.hidden fp_here
	.type fp_here, @function
fp_here:
	mov	(%esp), %eax
	ret
	.size fp_here, . - fp_here
	.cfi_endproc

	.section .note.GNU-stack, "", @progbits
