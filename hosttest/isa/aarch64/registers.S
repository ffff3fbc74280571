/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * void call_by_site(long number, struct registers *, unsigned long stack_offset);
 * void call_by_entry(long number, struct registers *, unsigned long stack_offset, unsigned long entry);
 *
 * Load all registers, make a call, and store all registers. The stack pointer is lower by stack_offset, a multiple of
 * 16, at the call. What is needed behind the call lies on the stack above.
 */
	.text
	.set	FLAGS, 28 * 8
	.set	VECTOR, FLAGS + 16
	.set	RESULT, VECTOR + 64 * 8
	.set	FRAME, 176

	/* x18 belongs to the platform. */
	.macro	load
	stp	x29, x30, [sp, #-FRAME]!
	stp	x19, x20, [sp, #16]
	stp	x21, x22, [sp, #32]
	stp	x23, x24, [sp, #48]
	stp	x25, x26, [sp, #64]
	stp	x27, x28, [sp, #80]
	stp	d8, d9, [sp, #96]
	stp	d10, d11, [sp, #112]
	stp	d12, d13, [sp, #128]
	stp	d14, d15, [sp, #144]
	/* The stack, for `store`: the thread's registers argument and its stack pointer, by TLS. */
	mrs	x9, tpidr_el0
	add	x9, x9, #:tprel_hi12:saved
	add	x9, x9, #:tprel_lo12_nc:saved
	mov	x10, sp
	stp	x10, x1, [x9]
	str	x3, [x9, #16]
	sub	sp, sp, x2
	mov	x8, x0
	mov	x0, x1
	.irp	n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
	ldr	q\n, [x0, #VECTOR + 16 * \n]
	.endr
	ldr	x1, [x0, #FLAGS]
	msr	nzcv, x1
	ldp	x1, x2, [x0]
	ldp	x3, x4, [x0, #16]
	ldp	x5, x6, [x0, #32]
	ldp	x7, x9, [x0, #48]
	ldp	x10, x11, [x0, #64]
	ldp	x12, x13, [x0, #80]
	ldp	x14, x15, [x0, #96]
	ldp	x16, x17, [x0, #112]
	ldp	x19, x20, [x0, #128]
	ldp	x21, x22, [x0, #144]
	ldp	x23, x24, [x0, #160]
	ldp	x25, x26, [x0, #176]
	ldp	x27, x28, [x0, #192]
	ldp	x29, x30, [x0, #208]
	ldr	x0, [x0, #RESULT]
	.endm

	.macro	store
	stp	x0, x1, [sp, #-16]!
	mrs	x0, tpidr_el0
	add	x0, x0, #:tprel_hi12:saved
	add	x0, x0, #:tprel_lo12_nc:saved
	ldr	x0, [x0, #8]
	ldr	x1, [sp, #8]
	stp	x1, x2, [x0]
	stp	x3, x4, [x0, #16]
	stp	x5, x6, [x0, #32]
	stp	x7, x9, [x0, #48]
	stp	x10, x11, [x0, #64]
	stp	x12, x13, [x0, #80]
	stp	x14, x15, [x0, #96]
	stp	x16, x17, [x0, #112]
	stp	x19, x20, [x0, #128]
	stp	x21, x22, [x0, #144]
	stp	x23, x24, [x0, #160]
	stp	x25, x26, [x0, #176]
	stp	x27, x28, [x0, #192]
	stp	x29, x30, [x0, #208]
	.irp	n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
	str	q\n, [x0, #VECTOR + 16 * \n]
	.endr
	mrs	x1, nzcv
	str	x1, [x0, #FLAGS]
	ldr	x1, [sp]
	str	x1, [x0, #RESULT]
	mrs	x0, tpidr_el0
	add	x0, x0, #:tprel_hi12:saved
	add	x0, x0, #:tprel_lo12_nc:saved
	ldr	x0, [x0]
	mov	sp, x0
	ldp	x19, x20, [sp, #16]
	ldp	x21, x22, [sp, #32]
	ldp	x23, x24, [sp, #48]
	ldp	x25, x26, [sp, #64]
	ldp	x27, x28, [sp, #80]
	ldp	d8, d9, [sp, #96]
	ldp	d10, d11, [sp, #112]
	ldp	d12, d13, [sp, #128]
	ldp	d14, d15, [sp, #144]
	ldp	x29, x30, [sp], #FRAME
	ret
	.endm

	.globl	call_by_site
	.type	call_by_site, %function
call_by_site:
	load
	svc	#0
	store
	.size	call_by_site, . - call_by_site

	.globl	call_by_entry
	.type	call_by_entry, %function
call_by_entry:
	load
	stp	x16, x17, [sp, #-16]!
	mrs	x17, tpidr_el0
	add	x17, x17, #:tprel_hi12:saved
	add	x17, x17, #:tprel_lo12_nc:saved
	ldr	x17, [x17, #16]
	adr	x16, 1f
	br	x17
	ldp	x16, x17, [sp], #16
	svc	#0
	b	2f
1:	ldp	x16, x17, [sp], #16
2:	store
	.size	call_by_entry, . - call_by_entry

	/* Stack pointer, registers, entry. */
	.section .tbss, "awT", %nobits
	.balign	16
saved:	.skip 32

	.section .note.GNU-stack, "", %progbits
