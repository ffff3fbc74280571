/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The entry to hook.c for i386. A 32-bit C library makes its system calls by calling the address in AT_SYSINFO;
 * fastpath puts a thunk there, which calls this and continues to the kernel's __kernel_vsyscall. Every register
 * except the arithmetic flags is preserved. No other entry is needed: the calls of libraries that are mapped later
 * also get here.
 */
#include "isa.h"
	.set	AC_DF, 0x40400

	.text
	.globl fp_hook_before_syscall
	.hidden fp_hook_before_syscall
	.type fp_hook_before_syscall, @function
fp_hook_before_syscall:
	cmp	$FP_NR_execve, %eax
	je	1f
	cmp	$FP_NR_settimeofday, %eax
	je	1f
	cmp	$FP_NR_adjtimex, %eax
	je	1f
	cmp	$FP_NR_prctl, %eax
	je	1f
	cmp	$FP_NR_clock_settime, %eax
	je	1f
	cmp	$FP_NR_unshare, %eax
	jb	2f
	je	1f
	cmp	$FP_NR_clock_adjtime, %eax
	je	1f
	cmp	$FP_NR_setns, %eax
	je	1f
	cmp	$FP_NR_seccomp, %eax
	je	1f
	cmp	$FP_NR_execveat, %eax
	je	1f
	cmp	$FP_NR_clock_settime64, %eax
	je	1f
	cmp	$FP_NR_clock_adjtime64, %eax
	je	1f
2:	ret
1:	push	%ebp			/* struct fp_call, from its end */
	push	%edi
	push	%esi
	push	%edx
	push	%ecx
	push	%ebx
	push	%eax
	mov	%esp, %ebp
	and	$-16, %esp
	pushf				/* C code must not run with AC or DF set */
	mov	(%esp), %ecx
	test	$AC_DF, %ecx
	jnz	4f
	sub	$8, %esp
	push	%ebp
	call	fp_hook_call
3:	test	%eax, %eax
	mov	%ebp, %esp
	pop	%eax
	pop	%ebx
	pop	%ecx
	pop	%edx
	pop	%esi
	pop	%edi
	pop	%ebp
	jz	2b
	lea	4(%esp), %esp		/* the call was made: return to the library */
	ret
4:	andl	$~AC_DF, (%esp)
	popf
	push	%ecx
	sub	$8, %esp
	push	%ebp
	call	fp_hook_call
	add	$12, %esp
	popf
	jmp	3b
	.size fp_hook_before_syscall, . - fp_hook_before_syscall

/* By the interrupt, which needs nothing from the process. */
	.globl fp_syscall6
	.hidden fp_syscall6
	.type fp_syscall6, @function
fp_syscall6:
	push	%ebp
	push	%edi
	push	%esi
	push	%ebx
	mov	20(%esp), %eax
	mov	24(%esp), %ebx
	mov	28(%esp), %ecx
	mov	32(%esp), %edx
	mov	36(%esp), %esi
	mov	40(%esp), %edi
	mov	44(%esp), %ebp
	int	$0x80
	pop	%ebx
	pop	%esi
	pop	%edi
	pop	%ebp
	ret
	.size fp_syscall6, . - fp_syscall6

	.section .note.GNU-stack, "", @progbits
