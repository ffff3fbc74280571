/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * __fastpath_syscall: in place of a system call instruction of the guest. Code jumps here with the call's registers,
 * but for x16 and x17, which it has pushed (stp x16, x17, [sp, #-16]!). x16 is the address to continue at if the call was
 * answered: x0 is the result then, and everything else as before, the flags too, but for x16 and x17. Any other call
 * continues three instructions before it, with all other registers as before. There the code pops both and makes the
 * call, so it is made with the guest's own stack pointer, as rt_sigreturn and clone need:
 *
 *	stp	x16, x17, [sp, #-16]!
 *	adr	x16, answered
 *	b	__fastpath_syscall
 *	ldp	x16, x17, [sp], #16
 *	svc	#0
 *	b	behind
 * answered:
 *	ldp	x16, x17, [sp], #16
 */
	.text
	.set	PUSHED, 16
	.set	FRAME, 176

	.balign	64
	.globl	__fastpath_syscall
	.type	__fastpath_syscall, %function
__fastpath_syscall:
	.cfi_startproc
	/* Unwinders continue behind the jump. */
	.cfi_def_cfa sp, PUSHED
	.cfi_return_column 30
	.cfi_register 30, 16
	bti	jc
	stp	x29, x30, [sp, #-FRAME]!
	.cfi_adjust_cfa_offset FRAME
	mrs	x17, nzcv
	stp	x1, x2, [sp, #16]
	stp	x3, x4, [sp, #32]
	stp	x5, x6, [sp, #48]
	stp	x7, x8, [sp, #64]
	stp	x9, x10, [sp, #80]
	stp	x11, x12, [sp, #96]
	stp	x13, x14, [sp, #112]
	stp	x15, x16, [sp, #128]
	.cfi_rel_offset 30, 136
	stp	x17, x0, [sp, #144]
	mov	x3, x8
	add	x4, sp, #FRAME + PUSHED
	bl	fp_answer_call
	ldp	x15, x16, [sp, #128]
	cbnz	x0, 1f
	ldr	x1, [sp, #152]
	sub	x16, x16, #12
1:	mov	x0, x1
	ldr	x17, [sp, #144]
	ldp	x1, x2, [sp, #16]
	ldp	x3, x4, [sp, #32]
	ldp	x5, x6, [sp, #48]
	ldp	x7, x8, [sp, #64]
	ldp	x9, x10, [sp, #80]
	ldp	x11, x12, [sp, #96]
	ldp	x13, x14, [sp, #112]
	msr	nzcv, x17
	ldp	x29, x30, [sp], #FRAME
	.cfi_adjust_cfa_offset -FRAME
	.cfi_register 30, 16
	br	x16
	.cfi_endproc
	.size	__fastpath_syscall, . - __fastpath_syscall

	.section .note.GNU-stack, "", %progbits
