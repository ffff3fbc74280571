/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * __fastpath_syscall: in place of a system call instruction of the guest. Code jumps here with the call's registers,
 * and with the address behind a `syscall` instruction in rcx, where the kernel leaves it too; r11 is free.
 *
 * A call that is answered continues there, with the registers as the system call leaves them: rax is the result, r11
 * the flags, and everything else is as before, the flags and 128 bytes below the stack pointer (the red zone) too.
 *
 * Any other call continues at that `syscall`, with all registers as before but r11: so it is made with the guest's own
 * stack pointer, as rt_sigreturn, clone and vfork need.
 */
	.text
	/* EFLAGS.AC: unaligned accesses trap in user space, and not in the kernel. */
	.set	AC, 0x40000
	.set	FLAGS, 8 * 8
	.set	SAVED, 128 + 9 * 8

	.macro	save register
	push	\register
	.cfi_adjust_cfa_offset 8
	.endm

	.macro	restore register
	pop	\register
	.cfi_adjust_cfa_offset -8
	.endm

	.macro	restore_arguments
	restore	%r10
	restore	%r9
	restore	%r8
	restore	%rdi
	restore	%rsi
	.endm

	/* Sets the flags of rax without popf, which is slow: the overflow flag by an addition, and the others by sahf.
	 * Nothing here changes those that remain (direction, alignment check). */
	.macro	restore_flags
	xchg	%al, %ah
	shl	$4, %al
	and	$0x80, %al
	add	%al, %al
	sahf
	.endm

	.macro	restore_rest
	restore	%rdx
	restore	%rcx
	.cfi_register %rip, %rcx
	lea	8 + 128(%rsp), %rsp
	.cfi_adjust_cfa_offset -(8 + 128)
	.endm

	.balign	64
	.globl	__fastpath_syscall
	.type	__fastpath_syscall, @function
__fastpath_syscall:
	.cfi_startproc
	/* Unwinders continue at the site. */
	.cfi_def_cfa %rsp, 0
	.cfi_register %rip, %rcx
	endbr64
	lea	-128(%rsp), %rsp
	.cfi_adjust_cfa_offset 128
	pushf
	.cfi_adjust_cfa_offset 8
	push	%rcx
	.cfi_adjust_cfa_offset 8
	.cfi_rel_offset %rip, 0
	save	%rdx
	save	%rsi
	save	%rdi
	save	%r8
	save	%r9
	save	%r10
	save	%rax
	testl	$AC, FLAGS(%rsp)
	jnz	1f
	mov	%rax, %rcx
	lea	SAVED(%rsp), %r8
	call	fp_answer_call
	test	%rax, %rax
	jz	1f
	.cfi_remember_state
	lea	8(%rsp), %rsp
	.cfi_adjust_cfa_offset -8
	restore_arguments
	mov	16(%rsp), %rax
	mov	%rax, %r11
	restore_flags
	mov	%rdx, %rax
	restore_rest
	jmp	*%rcx
	.cfi_restore_state

1:	pop	%r11
	.cfi_adjust_cfa_offset -8
	restore_arguments
	mov	16(%rsp), %rax
	restore_flags
	mov	%r11, %rax
	restore_rest
	lea	-2(%rcx), %r11
	jmp	*%r11
	.cfi_endproc
	.size	__fastpath_syscall, . - __fastpath_syscall

	.section .note.GNU-stack, "", @progbits
