/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What a program's own system calls for time are redirected to (surgery/code/src/rescue). A thunk jumps here in place of the
 * `syscall`, with its registers; rcx is the address to continue at, and r11 is free. A routine leaves the registers as
 * the system call does: rax is the result, r11 the flags, and everything else is as before, the flags and 128 bytes
 * below the stack pointer (the red zone) too.
 *
 * The kernel answers EFAULT where the result cannot be written, and code in user space would be killed. So the image
 * writes only to the page of the stack pointer, and to pages to which the kernel has written such a result before; all
 * other calls are made as system calls. A page that was unmapped since is not noticed.
 */
	.text

/* Pages to which the kernel has written, by the lowest bits of their numbers; 0: none. In the hook's private page. */
	.set	KNOWN, 1536
	.set	KNOWN_COUNT, 64
/* real_calls in struct fp_hook_state (mailbox.h). */
	.set	REAL_CALLS, 28
/* EFLAGS.AC: unaligned accesses trap in user space, and not in the kernel. */
	.set	AC, 0x40000
	.set	SAVED, 128 + 8 * 8

/* Jumps to 8 if rescued calls are system calls again. */
	.macro	enter
	lea	-128(%rsp), %rsp
	pushf
	push	%rcx
	push	%rdx
	push	%rsi
	push	%rdi
	push	%r8
	push	%r9
	push	%r10
	cmpl	$0, fp_state + REAL_CALLS(%rip)
	jne	8f
	.endm

/* Jumps to 9 unless the image may write `size` bytes at `buffer`. Leaves the page's number in r8 (0: two pages), and
 * its place in the table in r9 and r10. */
	.macro	examine buffer, size
	mov	\buffer, %r8
	lea	\size - 1(\buffer), %r10
	lea	SAVED - 1(%rsp), %r9
	shr	$12, %r8
	shr	$12, %r10
	shr	$12, %r9
	testl	$AC, 56(%rsp)
	jnz	8f
	cmp	%r10, %r8
	jne	8f
	cmp	%r9, %r8
	je	1f
	lea	fp_state + KNOWN(%rip), %r10
	mov	%r8d, %r9d
	and	$KNOWN_COUNT - 1, %r9d
	test	%r8, %r8
	jz	9f
	cmp	%r8, (%r10, %r9, 8)
	jne	9f
1:
	.endm

/* Makes the system call. Adds the page in r8 to the table if the call succeeds. */
	.macro	ask_kernel
8:	xor	%r8d, %r8d
9:	syscall
	test	%rax, %rax
	js	leave
	test	%r8, %r8
	jz	leave
	mov	%r8, (%r10, %r9, 8)
	jmp	leave
	.endm

	.macro	routine name
	.globl	\name
	.hidden	\name
	.type	\name, @function
\name:
	.endm

	routine	fp_rescue_clock_gettime
	enter
	examine	%rsi, 16
	call	*fp_rescue_image_clock_gettime(%rip)
	cltq
	jmp	leave
	ask_kernel
	.size	fp_rescue_clock_gettime, . - fp_rescue_clock_gettime

	routine	fp_rescue_gettimeofday
	enter
	test	%rsi, %rsi	/* only the kernel has the time zone */
	jnz	8f
	examine	%rdi, 16
	call	*fp_rescue_image_gettimeofday(%rip)
	cltq
	jmp	leave
	ask_kernel
	.size	fp_rescue_gettimeofday, . - fp_rescue_gettimeofday

	routine	fp_rescue_time
	enter
	test	%rdi, %rdi
	jz	1f
	examine	%rdi, 8
	call	*fp_rescue_image_time(%rip)
	jmp	leave
	ask_kernel
	.size	fp_rescue_time, . - fp_rescue_time

	routine	fp_rescue_clock_getres
	enter
	test	%rsi, %rsi
	jz	1f
	examine	%rsi, 16
	call	*fp_rescue_image_clock_getres(%rip)
	cltq
	jmp	leave
	ask_kernel
	.size	fp_rescue_clock_getres, . - fp_rescue_clock_getres

/* Answered if the words for CPU and node, or the one that is asked for, are in one page. */
	routine	fp_rescue_getcpu
	enter
	mov	%rdi, %rcx
	test	%rdi, %rdi
	cmovz	%rsi, %rcx
	mov	%rsi, %r11
	test	%rsi, %rsi
	cmovz	%rdi, %r11
	mov	%rcx, %r8
	xor	%r11, %r8
	shr	$12, %r8
	jnz	8f
	cmp	%rcx, %r11
	cmovb	%rcx, %r11
	examine	%r11, 4
	call	*fp_rescue_image_getcpu(%rip)
	cltq
	jmp	leave
	ask_kernel
	.size	fp_rescue_getcpu, . - fp_rescue_getcpu

/* The flags are restored without popf, which is slow: the overflow flag by an addition, and the others by sahf. No
 * instruction between changes those that remain (direction, alignment check). */
leave:
	pop	%r10
	pop	%r9
	pop	%r8
	pop	%rdi
	pop	%rsi
	mov	%rax, %rdx
	mov	16(%rsp), %rax
	mov	%rax, %r11
	xchg	%al, %ah
	shl	$4, %al
	and	$0x80, %al
	add	%al, %al
	sahf
	mov	%rdx, %rax
	pop	%rdx
	pop	%rcx
	lea	8 + 128(%rsp), %rsp
	jmp	*%rcx

/* The functions that answer: those of an image that asks the kernel by system calls. Filled in before this code is written
 * to a process (surgery/inject). */
	.balign	8
	.macro	slot name
	.globl	\name
	.hidden	\name
\name:	.quad	0
	.endm
	slot	fp_rescue_image_clock_gettime
	slot	fp_rescue_image_gettimeofday
	slot	fp_rescue_image_time
	slot	fp_rescue_image_clock_getres
	slot	fp_rescue_image_getcpu

	.section .note.GNU-stack, "", @progbits
