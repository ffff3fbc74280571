/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The entries to hook.c for 32-bit Arm. A thunk (surgery/inject/src/abi/aarch64/arm/sites.rs) calls the first one before an `svc`
 * instruction, with the registers of that call. Such a call changes r0 alone, so all other registers, and the flags, are
 * preserved. The C code uses no register of the FPU.
 */
#include "isa.h"

	.syntax unified
	.arm

/* glibc's T32 code gets here with most of its system calls: most numbers return at once. */
	.macro	IF_WATCHED label, number, more:vararg
	movw	ip, #\number
	cmp	r7, ip
	beq	\label
	.ifnb	\more
	IF_WATCHED \label, \more
	.endif
	.endm

	.text
	.balign	4
/* The thunk has saved ip and lr. */
	.globl	fp_hook_before_syscall
	.hidden	fp_hook_before_syscall
	.type	fp_hook_before_syscall, %function
fp_hook_before_syscall:
	mrs	ip, cpsr
	push	{ip, lr}
	IF_WATCHED 1f, FP_NR_execve, FP_NR_prctl, FP_NR_unshare, FP_NR_clock_settime, FP_NR_clock_settime64, \
		FP_NR_settimeofday, FP_NR_adjtimex, FP_NR_clock_adjtime, FP_NR_clock_adjtime64, FP_NR_setns, \
		FP_NR_seccomp, FP_NR_execveat
	pop	{ip, lr}
	msr	apsr_nzcvq, ip
	bx	lr
1:	push	{r0-r5}
	push	{r7}			/* struct fp_call */
	mov	r0, sp
	push	{r6}
	mov	r6, sp
	bic	sp, sp, #7
	bl	fp_hook_call
	mov	sp, r6
	mov	ip, r0
	pop	{r6}
	pop	{r7}
	pop	{r0-r5}
	ldr	lr, [sp, #4]
	add	lr, lr, ip, lsl #2	/* if the call was made: one instruction further on */
	ldr	ip, [sp], #8
	msr	apsr_nzcvq, ip
	bx	lr
	.size	fp_hook_before_syscall, . - fp_hook_before_syscall

/*
 * The target of AT_ENTRY. The registers are those of the ABI's process entry: sp at argc, r0 a function for atexit;
 * both reach the program unchanged.
 */
	.globl	fp_hook_entry
	.hidden	fp_hook_entry
	.type	fp_hook_entry, %function
fp_hook_entry:
	push	{r0, lr}
	bl	fp_hook_entered
	mov	ip, r0
	pop	{r0, lr}
	bx	ip
	.size	fp_hook_entry, . - fp_hook_entry

	.section .note.GNU-stack, "", %progbits
