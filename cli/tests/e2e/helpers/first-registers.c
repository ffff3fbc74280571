/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* first-registers: ends with 0 if all its registers are 0 at its first instruction, as the kernel leaves them. Compiled
 * with -nostdlib -static. */
__asm__(".globl _start\n"
	"_start:\n"
	"	or	%rbx, %rax\n"
	"	or	%rcx, %rax\n"
	"	or	%rdx, %rax\n"
	"	or	%rsi, %rax\n"
	"	or	%rdi, %rax\n"
	"	or	%rbp, %rax\n"
	"	or	%r8, %rax\n"
	"	or	%r9, %rax\n"
	"	or	%r10, %rax\n"
	"	or	%r11, %rax\n"
	"	or	%r12, %rax\n"
	"	or	%r13, %rax\n"
	"	or	%r14, %rax\n"
	"	or	%r15, %rax\n"
	"	xor	%edi, %edi\n"
	"	test	%rax, %rax\n"
	"	setnz	%dil\n"
	"	mov	$231, %eax\n"
	"	syscall\n");
