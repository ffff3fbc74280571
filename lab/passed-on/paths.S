/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The ways of a call to the kernel's function that fastpath passes on, one instruction for one, each with the
 * redirection around a copy of the beginning of Linux 6.18's clock_gettime. Every path is on pages of its own, as the
 * vDSO, the image and the thunks are.
 */
	.macro function name
	.p2align 12
	.skip	0x880			/* where the image has clock_gettime */
	.globl \name
	.type \name, @function
\name:
	.endm

	/* What the kernel's function does for a COARSE clock: the displaced instructions, and the rest. */
	.macro displaced
	push	%rbp
	mov	%rsp, %rbp
	push	%r14
	.endm
	.macro rest
	push	%rbx
	and	$-16, %rsp
	sub	$16, %rsp
	cmp	$23, %edi
	ja	9f
	mov	$1, %eax
	mov	%edi, %ecx
	lea	page(%rip), %r10
	shl	%cl, %eax
	mov	%eax, %edx
	and	$0x883, %edx
	jne	9f
	test	$0x60, %al
	je	9f
	movslq	%edi, %rdi
	shl	$4, %rdi
	add	%r10, %rdi
1:	mov	(%r10), %edx
	test	$1, %dl
	jne	1b
	mov	0x28(%rdi), %rax
	mov	0x30(%rdi), %rcx
	cmp	(%r10), %edx
	jne	1b
	mov	%rax, (%rsi)
	mov	%rcx, 8(%rsi)
	xor	%eax, %eax
	lea	-16(%rbp), %rsp
	pop	%rbx
	pop	%r14
	pop	%rbp
	ret
9:	ud2
	.endm

	/* The image's clock_gettime, up to where a COARSE clock leaves it. */
	.macro image function, coarse
	function \function
	endbr64
	mov	%rsi, %r8
	cmp	$1, %edi
	ja	\coarse
	ud2
	.endm
	.macro is_coarse
	lea	-5(%rdi), %eax
	cmp	$1, %eax
	ja	8f
	.endm

	.text
	/* No redirection. */
	function path_kernel
	displaced
	rest

	/* The least that a redirection takes: a jump at the entry, and one back. */
	function path_jumps
	jmp	jumps_thunk
jumps_back:
	rest
	function jumps_thunk
	displaced
	jmp	jumps_back

	/* fastpath's. */
	function path_fastpath
	jmp	fastpath_image
fastpath_back:
	rest
	image fastpath_image, fastpath_coarse
fastpath_coarse:
	is_coarse
	jmp	fastpath_call
8:	ud2
	.skip	0x400
fastpath_call:
	jmp	*fastpath_slot(%rip)
	function fastpath_thunk
	displaced
	jmp	fastpath_back

	/* The test jumps to the thunk, without the jump through the slot. */
	function path_direct
	jmp	direct_image
direct_back:
	rest
	image direct_image, direct_coarse
direct_coarse:
	is_coarse
	jmp	direct_thunk
8:	ud2
	function direct_thunk
	displaced
	jmp	direct_back

	/* The test is in the thunk. */
	function path_test_in_thunk
	jmp	test_in_thunk_image
test_in_thunk_back:
	rest
	image test_in_thunk_image, test_in_thunk_thunk
	function test_in_thunk_thunk
	is_coarse
	displaced
	jmp	test_in_thunk_back
8:	ud2

	/* The test is in the thunk, which has a copy of the whole function: no jump back. */
	function path_copy
	jmp	copy_image
	image copy_image, copy_thunk
	function copy_thunk
	is_coarse
	displaced
	rest
8:	ud2

	.data
	.p2align 12
page:
	.fill	512, 8, 2
fastpath_slot:
	.quad	fastpath_thunk

	.section .note.GNU-stack, "", @progbits
