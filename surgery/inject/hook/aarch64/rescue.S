/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What a program's own system calls for time are redirected to (surgery/code/src/rescue). A thunk jumps here in place of the
 * `svc`, with its registers, but for x16, the address to continue at, and x17, which is free: both are restored there.
 * A routine leaves the registers as the system call does: x0 is the result, and everything else is as before, the flags
 * too.
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
/* What a thunk and `enter` put on the stack. */
	.set	SAVED, 16 + 176

/* x18 is the platform's, and the image leaves it alone. Jumps to 8 if rescued calls are system calls again. */
	.macro	enter
	stp	x29, x30, [sp, #-176]!
	mrs	x17, nzcv
	stp	x1, x2, [sp, #16]
	stp	x3, x4, [sp, #32]
	stp	x5, x6, [sp, #48]
	stp	x7, x8, [sp, #64]
	stp	x9, x10, [sp, #80]
	stp	x11, x12, [sp, #96]
	stp	x13, x14, [sp, #112]
	stp	x15, x16, [sp, #128]
	str	x17, [sp, #144]
	adrp	x17, fp_state + REAL_CALLS
	ldr	w17, [x17, :lo12:fp_state + REAL_CALLS]
	cbnz	w17, 8f
	.endm

/* Jumps to 9 unless the image may write 16 bytes at `buffer`. Leaves the page's number in x9 (0: two pages), and its
 * place in the table in x10. */
	.macro	examine buffer
	lsr	x9, \buffer, #12
	add	x10, \buffer, #15
	cmp	x9, x10, lsr #12
	b.ne	8f
	add	x11, sp, #SAVED - 1
	cmp	x9, x11, lsr #12
	b.eq	1f
	adrp	x10, fp_state + KNOWN
	add	x10, x10, :lo12:fp_state + KNOWN
	and	x11, x9, #KNOWN_COUNT - 1
	add	x10, x10, x11, lsl #3
	cbz	x9, 9f
	ldr	x11, [x10]
	cmp	x11, x9
	b.ne	9f
1:
	.endm

/* Makes the system call. Adds the page in x9 to the table if the call succeeds. */
	.macro	ask_kernel
8:	mov	x9, #0
9:	svc	#0
	tbnz	x0, #63, leave
	cbz	x9, leave
	str	x9, [x10]
	b	leave
	.endm

	.macro	routine name
	.globl	\name
	.hidden	\name
	.type	\name, %function
\name:
	.endm

	routine	fp_rescue_clock_gettime
	enter
	examine	x1
	ldr	x17, fp_rescue_image_clock_gettime
	blr	x17
	sxtw	x0, w0
	b	leave
	ask_kernel
	.size	fp_rescue_clock_gettime, . - fp_rescue_clock_gettime

	routine	fp_rescue_gettimeofday
	enter
	cbnz	x1, 8f	/* only the kernel has the time zone */
	examine	x0
	ldr	x17, fp_rescue_image_gettimeofday
	blr	x17
	sxtw	x0, w0
	b	leave
	ask_kernel
	.size	fp_rescue_gettimeofday, . - fp_rescue_gettimeofday

	routine	fp_rescue_clock_getres
	enter
	cbz	x1, 1f
	examine	x1
	ldr	x17, fp_rescue_image_clock_getres
	blr	x17
	sxtw	x0, w0
	b	leave
	ask_kernel
	.size	fp_rescue_clock_getres, . - fp_rescue_clock_getres

leave:
	ldr	x17, [sp, #144]
	ldp	x15, x16, [sp, #128]
	ldp	x13, x14, [sp, #112]
	ldp	x11, x12, [sp, #96]
	ldp	x9, x10, [sp, #80]
	ldp	x7, x8, [sp, #64]
	ldp	x5, x6, [sp, #48]
	ldp	x3, x4, [sp, #32]
	ldp	x1, x2, [sp, #16]
	msr	nzcv, x17
	ldp	x29, x30, [sp], #176
	br	x16

/* The image's functions. Filled in before this code is written to a process (surgery/inject). */
	.balign	8
	.macro	slot name
	.globl	\name
	.hidden	\name
\name:	.quad	0
	.endm
	slot	fp_rescue_image_clock_gettime
	slot	fp_rescue_image_gettimeofday
	slot	fp_rescue_image_clock_getres

	.section .note.GNU-stack, "", %progbits
