/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Functions of the kernel's vDSO that are passed on, with all registers and the stack unchanged except ip, which
 * calls may change. A process whose kernel lacks one of them does not find its name here either (core/image hides
 * it), so the slot is never 0 when it is used.
 */
#include "isa.h"

	.syntax unified
	.arm
	.text
	.balign 4
	.globl __vdso_clock_getres_time64
	.type __vdso_clock_getres_time64, %function
__vdso_clock_getres_time64:
	.fnstart
	ldr	ip, 2f
1:	add	ip, pc, ip
	ldr	pc, [ip, #FP_SLOT_clock_getres_time64]
2:	.word	fp_slots - (1b + 8)
	.fnend
	.size __vdso_clock_getres_time64, . - __vdso_clock_getres_time64

	.section .note.GNU-stack, "", %progbits
