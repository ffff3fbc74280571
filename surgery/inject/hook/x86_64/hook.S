/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Three entries to hook.c. None changes a register or a byte of stack that the program still needs.
 *
 * A thunk calls the first two before a `syscall` instruction, with the registers of that call. rcx and r11 are free,
 * because the system call itself overwrites them. So are the arithmetic flags, by the rules of compilers and
 * libraries; the other flags are preserved.
 */
#include "isa.h"

/* Some runtimes (Go) get here with every system call that they make: most numbers return at once. */
	.macro LEAVE_UNLESS_WATCHED
	cmp	$FP_NR_execve, %rax
	je	1f
	cmp	$FP_NR_prctl, %rax
	je	1f
	cmp	$FP_NR_adjtimex, %rax
	je	1f
	cmp	$FP_NR_settimeofday, %rax
	je	1f
	cmp	$FP_NR_clock_settime, %rax
	je	1f
	cmp	$FP_NR_unshare, %rax
	jb	2f
	je	1f
	cmp	$FP_NR_clock_adjtime, %rax
	je	1f
	cmp	$FP_NR_setns, %rax
	je	1f
	cmp	$FP_NR_seccomp, %rax
	je	1f
	cmp	$FP_NR_execveat, %rax
	je	1f
2:	ret
1:
	.endm

	.set	AC_DF, 0x40400
/* Distance in a thunk from where the hook returns to, to the jump behind the `syscall`: a lea and a jump, or in one of Go
 * a jump alone (surgery/inject/src/abi/x86_64/sites.rs). */
	.set	BEHIND, 8 + 5
	.set	BEHIND_GO, 5

	.text
/* For code compiled from C. The thunk has stepped over the red zone. */
	.globl fp_hook_before_syscall
	.hidden fp_hook_before_syscall
	.type fp_hook_before_syscall, @function
fp_hook_before_syscall:
	LEAVE_UNLESS_WATCHED
	call	look
	jz	3f
	pop	%rcx
	lea	128(%rsp), %rsp
	lea	BEHIND(%rcx), %rcx
	jmp	*%rcx
3:	ret
	.size fp_hook_before_syscall, . - fp_hook_before_syscall

/* Preserves every register except rcx and r11. The zero flag is set unless the call was made. */
	.type look, @function
look:	push	%rbp
	mov	%rsp, %rbp
	push	%r9			/* struct fp_call, from its end */
	push	%r8
	push	%r10
	push	%rdx
	push	%rsi
	push	%rdi
	push	%rax
	mov	%rsp, %rdi
	and	$-16, %rsp
	pushf				/* C code must not run with AC or DF set */
	mov	(%rsp), %rax
	test	$AC_DF, %eax
	jnz	5f
	lea	8(%rsp), %rsp
	call	fp_hook_call
4:	test	%eax, %eax
	lea	-56(%rbp), %rsp
	pop	%rax
	pop	%rdi
	pop	%rsi
	pop	%rdx
	pop	%r10
	pop	%r8
	pop	%r9
	pop	%rbp
	ret
	/* Only programs with these flags set execute popf: a debugger that steps over it leaves the trap flag set. */
5:	andl	$~AC_DF, (%rsp)
	popf
	push	%rax
	push	%rax
	call	fp_hook_call
	popf
	jmp	4b
	.size look, . - look

/*
 * For Go: a goroutine's stack may end a few words below, so the work is done on the stack at the end of the state
 * page. A second thread that gets here meanwhile continues unwatched. Go's signal handlers run on stacks of their
 * own.
 */
	.globl fp_hook_before_syscall_go
	.hidden fp_hook_before_syscall_go
	.type fp_hook_before_syscall_go, @function
fp_hook_before_syscall_go:
	LEAVE_UNLESS_WATCHED
	mov	$1, %ecx
	xchg	%ecx, fp_state+20(%rip)
	test	%ecx, %ecx
	jnz	3f
	mov	%rsp, %r11
	lea	fp_state+4096(%rip), %rsp
	push	%r11
	call	look
	pop	%rsp
	movl	$0, fp_state+20(%rip)
	jz	3f
	addq	$BEHIND_GO, (%rsp)
3:	ret
	.size fp_hook_before_syscall_go, . - fp_hook_before_syscall_go

/*
 * The target of AT_ENTRY. The registers are those of the ABI's process entry: rsp at argc, rdx a function for
 * atexit; both reach the program unchanged.
 */
	.globl fp_hook_entry
	.hidden fp_hook_entry
	.type fp_hook_entry, @function
fp_hook_entry:
	push	%rdx
	push	%rbp
	mov	%rsp, %rbp
	and	$-16, %rsp
	call	fp_hook_entered
	mov	%rbp, %rsp
	pop	%rbp
	pop	%rdx
	jmp	*%rax
	.size fp_hook_entry, . - fp_hook_entry

/*
 * Where a dynamic linker begins that is executed as a program, in place of its first two instructions: rdi is its function that
 * loads the program and returns its entry point, rsi the instruction behind that call. The linker gets fp_hook_entry instead.
 */
	.globl fp_hook_linker
	.hidden fp_hook_linker
	.type fp_hook_linker, @function
fp_hook_linker:
	mov	%rsi, %rbx
	mov	%rdi, %rax
	mov	%rsp, %rdi
	call	*%rax
	mov	%rax, fp_state(%rip)
	lea	fp_hook_entry(%rip), %rax
	mov	%rbx, %rcx
	xor	%ebx, %ebx
	jmp	*%rcx
	.size fp_hook_linker, . - fp_hook_linker

	.section .note.GNU-stack, "", @progbits
