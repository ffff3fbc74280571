/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Functions of the kernel's vDSO that have nothing to do with clocks, passed on with all registers and the stack
 * unchanged except x16, which calls may change. A process whose kernel lacks one of them does not find its name here
 * either (core/image hides it), so the slot is never 0 when it is used.
 */
#include "isa.h"

	.text
	.balign 4
	.globl __kernel_getrandom
	.type __kernel_getrandom, %function
__kernel_getrandom:
	.cfi_startproc
	bti	c
	ldr	x16, fp_slots + FP_SLOT_getrandom
	br	x16
	.cfi_endproc
	.size __kernel_getrandom, . - __kernel_getrandom

	.section .note.GNU-stack, "", %progbits
