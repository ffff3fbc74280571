/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The code that makes system calls in the guest's process without a trap (gate.h). It is copied to the region's gate, so
 * it is position independent.
 */
#include "gate.h"

	.section .rodata.gate, "a"
	.balign	16
	.globl	gate_start, gate_call, gate_restorer, gate_forward, gate_forward_exactly, gate_cloned, gate_end
	.globl	gate_slots

	/* long gate_call(number, a, b, c, d, e, f) */
gate_start:
gate_call:
	mov	%rdi, %rax
	mov	%rsi, %rdi
	mov	%rdx, %rsi
	mov	%rcx, %rdx
	mov	%r8, %r10
	mov	%r9, %r8
	mov	8(%rsp), %r9
	syscall
	ret

	/* Where the handler of SIGSYS returns to. */
	.balign	16
gate_restorer:
	mov	$GATE_NR_RT_SIGRETURN, %eax
	syscall

	/* A call of the guest, with its registers, above a struct gate_forwarded. */
	.balign	16
gate_forward:
	syscall
	mov	(%rsp), %rcx
	mov	8(%rsp), %rsp
	jmp	*%rcx

	/* One that does not return, with the guest's stack pointer: rt_sigreturn. */
	.balign	16
gate_forward_exactly:
	syscall
	ud2

	/*
	 * Behind a call that makes a process or a thread, in both. rcx is the address behind the guest's instruction, r11
	 * the call's flags. Traps, after it has made a child's calls trap too, with a struct gate_cloned at the
	 * stack pointer; the handler restores all registers.
	 */
	.balign	16
gate_cloned:
	lea	-GATE_ROOM(%rsp), %rsp
	pushf
	push	%rax
	push	%rcx
	push	%r11
	push	%rdi
	push	%rsi
	push	%rdx
	push	%r10
	push	%r8
	test	%rax, %rax
	jnz	1f
	mov	$GATE_NR_PRCTL, %eax
	mov	$GATE_DISPATCH, %edi
	mov	$1, %esi
	mov	gate_slots(%rip), %rdx
	mov	gate_slots + 8(%rip), %r10
	xor	%r8d, %r8d
	syscall
1:	jmp	*gate_slots + 16(%rip)

	/* Start and size of the region's code; the address of an instruction outside of it (trap_on_purpose). */
	.balign	16
gate_slots:
	.quad	0, 0, 0
gate_end:

	.text
	.globl	trap_on_purpose
trap_on_purpose:
	syscall
	ud2

	/* void call_on_stack(void (*function)(void *), void *argument, void *stack_top): does not return. */
	.globl	call_on_stack
call_on_stack:
	mov	%rdx, %rsp
	mov	%rdi, %rax
	mov	%rsi, %rdi
	xor	%ebp, %ebp
	call	*%rax
	ud2

	.section .note.GNU-stack, "", @progbits
