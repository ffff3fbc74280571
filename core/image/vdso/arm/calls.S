/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The system calls. Where a process's kernel has a function for one, an instance replaces it by a jump to that
 * (core/image). They are only called directly, from within the image. The arguments are already in the right
 * registers, and r7 belongs to the caller.
 */
#include "isa.h"

	.syntax unified
	.arm
	.text
	.balign 4
	.macro system_call function, number
	.globl fp_call_\function
	.hidden fp_call_\function
	.type fp_call_\function, %function
fp_call_\function:
	.fnstart
	.save	{r7, lr}
	push	{r7, lr}
	movw	r7, #\number
	svc	#0
1:	pop	{r7, pc}
	.fnend
	.size fp_call_\function, . - fp_call_\function
	.pushsection .fastpath.system_calls, "", %progbits
	.long	1b
	.popsection
	.endm

	system_call clock_gettime, FP_NR_clock_gettime
	system_call gettimeofday, FP_NR_gettimeofday
	system_call clock_getres, FP_NR_clock_getres

	.section .note.GNU-stack, "", %progbits
