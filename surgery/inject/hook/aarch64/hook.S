/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Three entries to hook.c. None changes a register or a byte of stack that the program still needs.
 *
 * A thunk calls the first two in the place of an `svc` instruction, with the registers of that call. Such a call
 * changes x0 alone, and compilers rely on it, so all other registers, and the flags, are preserved.
 * surgery/inject/src/abi/aarch64/sites.rs describes what the thunks save themselves.
 */
#include "isa.h"

/* Some runtimes (Go) get here with every system call that they make: most numbers return at once. */
	.macro IF_WATCHED label
	cmp	x8, #FP_NR_execve
	b.eq	\label
	cmp	x8, #FP_NR_prctl
	b.eq	\label
	cmp	x8, #FP_NR_unshare
	b.eq	\label
	cmp	x8, #FP_NR_clock_settime
	b.eq	\label
	cmp	x8, #FP_NR_settimeofday
	b.eq	\label
	cmp	x8, #FP_NR_adjtimex
	b.eq	\label
	cmp	x8, #FP_NR_clock_adjtime
	b.eq	\label
	cmp	x8, #FP_NR_setns
	b.eq	\label
	cmp	x8, #FP_NR_seccomp
	b.eq	\label
	cmp	x8, #FP_NR_execveat
	b.eq	\label
	.endm

	.text
/* For code compiled from C. The thunk has saved x16 and x30 on the stack: AArch64 has no red zone below it. */
	.globl fp_hook_before_syscall
	.hidden fp_hook_before_syscall
	.type fp_hook_before_syscall, %function
fp_hook_before_syscall:
	mrs	x16, nzcv
	str	x16, [sp, #-16]!
	IF_WATCHED 1f
	b	2f
1:	mov	x16, x30
	bl	look
	mov	x30, x16
2:	ldr	x16, [sp], #16
	msr	nzcv, x16
	ret
	.size fp_hook_before_syscall, . - fp_hook_before_syscall

/* Preserves every register except x30, and x0 if the call was made: then x16, the address in the thunk to return to,
 * goes to the instruction behind. */
	.type look, %function
look:	stp	x29, x30, [sp, #-160]!
	mov	x29, sp
	stp	x8, x0, [sp, #16]	/* struct fp_call */
	stp	x1, x2, [sp, #32]
	stp	x3, x4, [sp, #48]
	stp	x5, x6, [sp, #64]
	stp	x7, x9, [sp, #80]
	stp	x10, x11, [sp, #96]
	stp	x12, x13, [sp, #112]
	stp	x14, x15, [sp, #128]
	stp	x16, x17, [sp, #144]
	add	x0, sp, #16
	bl	fp_hook_call
	mov	w30, w0
	ldp	x8, x0, [sp, #16]
	ldp	x1, x2, [sp, #32]
	ldp	x3, x4, [sp, #48]
	ldp	x5, x6, [sp, #64]
	ldp	x7, x9, [sp, #80]
	ldp	x10, x11, [sp, #96]
	ldp	x12, x13, [sp, #112]
	ldp	x14, x15, [sp, #128]
	ldp	x16, x17, [sp, #144]
	add	x16, x16, x30, lsl #2
	ldp	x29, x30, [sp], #160
	ret
	.size look, . - look

/*
 * For Go: a goroutine's stack may end a few words below, so the work is done on the stack at the end of the state
 * page. A second thread that gets here meanwhile continues unwatched. Go's signal handlers run on stacks of their
 * own.
 *
 * Go's assembly keeps nothing in x9 to x17 or in the flags across its system calls. The thunk has put x30 into x17.
 */
	.globl fp_hook_before_syscall_go
	.hidden fp_hook_before_syscall_go
	.type fp_hook_before_syscall_go, %function
fp_hook_before_syscall_go:
	IF_WATCHED 1f
	ret
1:	adrp	x9, fp_state
	add	x9, x9, :lo12:fp_state
	add	x10, x9, #20		/* stack_lock */
	mov	w11, #1
2:	ldaxr	w12, [x10]
	cbnz	w12, 3f
	stxr	w13, w11, [x10]
	cbnz	w13, 2b
	mov	x11, sp
	add	x9, x9, #4096
	mov	sp, x9
	str	x11, [sp, #-16]!
	mov	x16, x30
	bl	look
	mov	x30, x16
	ldr	x11, [sp]
	mov	sp, x11
	stlr	wzr, [x10]
	ret
3:	clrex
	ret
	.size fp_hook_before_syscall_go, . - fp_hook_before_syscall_go

/*
 * The target of AT_ENTRY. The registers are those of the ABI's process entry: sp at argc, x0 a function for atexit;
 * both reach the program unchanged. The jump uses x16, as a guarded entry point requires (BTI).
 */
	.globl fp_hook_entry
	.hidden fp_hook_entry
	.type fp_hook_entry, %function
fp_hook_entry:
	stp	x0, x30, [sp, #-16]!
	bl	fp_hook_entered
	mov	x16, x0
	ldp	x0, x30, [sp], #16
	br	x16
	.size fp_hook_entry, . - fp_hook_entry

	.section .note.GNU-stack, "", %progbits
