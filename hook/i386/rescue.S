/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What a program's own system calls for time are redirected to (crates/code/src/rescue). A thunk calls a routine in place of the
 * system call, with its registers. A routine leaves the registers as the system call does: eax is the result, and
 * everything else is as before, the flags too.
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
/* What a thunk's call and `enter` put on the stack. */
	.set	SAVED, 24

/* Sets edx to the address of a word of this page, or near it. */
	.macro	address_of word
	call	7f
7:	pop	%edx
	lea	\word - 7b(%edx), %edx
	.endm

/* Leaves the address of fp_state in edx. Jumps to 8 if rescued calls are system calls again. */
	.macro	enter
	pushf
	push	%eax
	push	%ecx
	push	%edx
	push	%esi
	address_of fp_state
	cmpl	$0, REAL_CALLS(%edx)
	jne	8f
	.endm

/* Jumps to 9 unless the image may write `size` bytes at `buffer`. Leaves the page's number in esi (0: two pages), and
 * the address of its place in the table in edx. */
	.macro	examine buffer, size
	mov	\buffer, %esi
	lea	\size - 1(\buffer), %eax
	shr	$12, %esi
	shr	$12, %eax
	testl	$AC, 16(%esp)
	jnz	8f
	cmp	%eax, %esi
	jne	8f
	lea	SAVED - 1(%esp), %eax
	shr	$12, %eax
	cmp	%eax, %esi
	je	1f
	test	%esi, %esi
	jz	9f
	mov	%esi, %eax
	and	$KNOWN_COUNT - 1, %eax
	lea	KNOWN(%edx, %eax, 4), %edx
	cmp	%esi, (%edx)
	jne	9f
1:
	.endm

/* Makes the system call. Adds the page in esi to the table if the call succeeds. */
	.macro	ask_kernel
8:	xor	%esi, %esi
9:	mov	12(%esp), %eax
	int	$0x80
	test	%eax, %eax
	js	leave
	test	%esi, %esi
	jz	leave
	mov	%esi, (%edx)
	jmp	leave
	.endm

/* Calls the function of two arguments in ebx and ecx. */
	.macro	call_function slot
	address_of \slot
	push	%ecx
	push	%ebx
	call	*(%edx)
	lea	8(%esp), %esp
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
	examine	%ecx, 8
	call_function fp_rescue_image_clock_gettime
	ask_kernel
	.size	fp_rescue_clock_gettime, . - fp_rescue_clock_gettime

	routine	fp_rescue_clock_gettime64
	enter
	examine	%ecx, 16
	call_function fp_rescue_image_clock_gettime64
	ask_kernel
	.size	fp_rescue_clock_gettime64, . - fp_rescue_clock_gettime64

	routine	fp_rescue_gettimeofday
	enter
	test	%ecx, %ecx	/* only the kernel has the time zone */
	jnz	8f
	examine	%ebx, 8
	call_function fp_rescue_image_gettimeofday
	ask_kernel
	.size	fp_rescue_gettimeofday, . - fp_rescue_gettimeofday

	routine	fp_rescue_time
	enter
	test	%ebx, %ebx
	jz	1f
	examine	%ebx, 4
	call_function fp_rescue_image_time
	ask_kernel
	.size	fp_rescue_time, . - fp_rescue_time

	routine	fp_rescue_clock_getres
	enter
	test	%ecx, %ecx
	jz	1f
	examine	%ecx, 8
	call_function fp_rescue_image_clock_getres
	ask_kernel
	.size	fp_rescue_clock_getres, . - fp_rescue_clock_getres

/* Answered if the words for CPU and node, or the one that is asked for, are in one page. */
	routine	fp_rescue_getcpu
	enter
	mov	%ebx, %eax
	test	%ebx, %ebx
	cmovz	%ecx, %eax
	mov	%ecx, %esi
	test	%ecx, %ecx
	cmovz	%ebx, %esi
	xor	%eax, %esi
	cmp	$4096, %esi
	jae	8f
	xor	%eax, %esi
	cmp	%esi, %eax
	cmovb	%esi, %eax
	examine	%eax, 4
	call_function fp_rescue_image_getcpu
	ask_kernel
	.size	fp_rescue_getcpu, . - fp_rescue_getcpu

/* The flags are restored without popf, which is slow: the overflow flag by an addition, and the others by sahf. No
 * instruction between changes those that remain (direction, alignment check). */
leave:
	pop	%esi
	pop	%edx
	pop	%ecx
	mov	%eax, (%esp)
	mov	4(%esp), %eax
	xchg	%al, %ah
	shl	$4, %al
	and	$0x80, %al
	add	%al, %al
	sahf
	pop	%eax
	lea	4(%esp), %esp
	ret

/* The functions that answer: those of an image that asks the kernel by system calls. Filled in before this code is written
 * to a process (crates/inject). */
	.balign	8
	.macro	slot name
	.globl	\name
	.hidden	\name
\name:	.quad	0
	.endm
	slot	fp_rescue_image_clock_gettime
	slot	fp_rescue_image_clock_gettime64
	slot	fp_rescue_image_gettimeofday
	slot	fp_rescue_image_time
	slot	fp_rescue_image_clock_getres
	slot	fp_rescue_image_getcpu

	.section .note.GNU-stack, "", @progbits
