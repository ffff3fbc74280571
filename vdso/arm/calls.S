/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The system calls. Where a process's kernel has a function for one, an instance replaces it by a jump to that
 * (crates/image). They are only called directly, from within the image. The arguments are already in the right
 * registers, and r7 belongs to the caller.
 */
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

	system_call clock_gettime, 263
	system_call gettimeofday, 78
	system_call clock_getres, 264

	.section .note.GNU-stack, "", %progbits
