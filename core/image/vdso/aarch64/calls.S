/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The system calls. Where a process's kernel has a function for one, an instance replaces it by a jump to that
 * (core/image). They are only called directly, from within the image. The arguments are already in the right
 * registers.
 */
#include "isa.h"

	.text
	.balign 4
	.cfi_startproc
	.macro system_call function, number
	.globl fp_call_\function
	.hidden fp_call_\function
	.type fp_call_\function, %function
fp_call_\function:
	mov	x8, #\number
	svc	#0
1:	ret
	.size fp_call_\function, . - fp_call_\function
	.pushsection .fastpath.system_calls, "", %progbits
	.quad	1b
	.popsection
	.endm

	system_call clock_gettime, FP_NR_clock_gettime
	system_call gettimeofday, FP_NR_gettimeofday
	system_call clock_getres, FP_NR_clock_getres
	.cfi_endproc

	.section .note.GNU-stack, "", %progbits
