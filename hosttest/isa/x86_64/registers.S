/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * void call_by_site(long number, struct registers *, unsigned long stack_offset);
 * void call_by_entry(long number, struct registers *, unsigned long stack_offset, unsigned long entry);
 *
 * Load all registers, make a call, and store all registers. The stack pointer is lower by stack_offset at the call.
 */
	.text
	.set	FLAGS, 12 * 8
	.set	RED_ZONE, FLAGS + 8
	.set	VECTOR, RED_ZONE + 16 * 8
	.set	RESULT, VECTOR + 32 * 8

	/* The entry's address and the registers' address are in memory that only this thread uses. */
	.macro	load
	push	%rbx
	push	%rbp
	push	%r12
	push	%r13
	push	%r14
	push	%r15
	mov	%rsp, %fs:saved_stack@tpoff
	mov	%rsi, %fs:saved_registers@tpoff
	mov	%rcx, %fs:saved_entry@tpoff
	sub	%rdx, %rsp
	mov	%rdi, %rax
	mov	%rsi, %r11
	.set	i, 0
	.rept	16
	mov	RED_ZONE + 8 * i(%r11), %rcx
	mov	%rcx, -128 + 8 * i(%rsp)
	.set	i, i + 1
	.endr
	.irp	n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
	movdqu	VECTOR + 16 * \n(%r11), %xmm\n
	.endr
	mov	(%r11), %rbx
	mov	8(%r11), %rdx
	mov	16(%r11), %rsi
	mov	24(%r11), %rdi
	mov	32(%r11), %rbp
	mov	40(%r11), %r8
	mov	48(%r11), %r9
	mov	56(%r11), %r10
	mov	64(%r11), %r12
	mov	72(%r11), %r13
	mov	80(%r11), %r14
	mov	88(%r11), %r15
	/* Flags without a push, which would use the red zone. */
	lea	-256(%rsp), %rsp
	push	FLAGS(%r11)
	popf
	lea	256(%rsp), %rsp
	.endm

	.macro	store
	/* lea changes no flags. */
	lea	-256(%rsp), %rsp
	mov	%fs:saved_registers@tpoff, %r11
	pushf
	pop	FLAGS(%r11)
	cld
	/* Alignment checks off, whatever the flags were. */
	pushf
	andl	$~0x40000, (%rsp)
	popf
	lea	256(%rsp), %rsp
	mov	%rax, RESULT(%r11)
	.set	i, 0
	.rept	16
	mov	-128 + 8 * i(%rsp), %rcx
	mov	%rcx, RED_ZONE + 8 * i(%r11)
	.set	i, i + 1
	.endr
	.irp	n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
	movdqu	%xmm\n, VECTOR + 16 * \n(%r11)
	.endr
	mov	%rbx, (%r11)
	mov	%rdx, 8(%r11)
	mov	%rsi, 16(%r11)
	mov	%rdi, 24(%r11)
	mov	%rbp, 32(%r11)
	mov	%r8, 40(%r11)
	mov	%r9, 48(%r11)
	mov	%r10, 56(%r11)
	mov	%r12, 64(%r11)
	mov	%r13, 72(%r11)
	mov	%r14, 80(%r11)
	mov	%r15, 88(%r11)
	mov	%fs:saved_stack@tpoff, %rsp
	pop	%r15
	pop	%r14
	pop	%r13
	pop	%r12
	pop	%rbp
	pop	%rbx
	ret
	.endm

	.globl	call_by_site
	.type	call_by_site, @function
call_by_site:
	endbr64
	load
	syscall
	store
	.size	call_by_site, . - call_by_site

	.globl	call_by_entry
	.type	call_by_entry, @function
call_by_entry:
	endbr64
	load
	lea	1f(%rip), %rcx
	jmp	*%fs:saved_entry@tpoff
	syscall
1:	endbr64
	store
	.size	call_by_entry, . - call_by_entry

	.section .tbss, "awT", @nobits
	.balign	8
saved_stack:	.skip 8
saved_registers: .skip 8
saved_entry:	.skip 8

	.section .note.GNU-stack, "", @progbits
