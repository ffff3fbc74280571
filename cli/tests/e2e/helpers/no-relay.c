/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* no-relay: a static program whose execve has no instruction near it that can be changed without its first byte. Ends
 * with 0 after it was given a second argument, or else waits. Compiled with -nostdlib -static. */
__asm__(".globl _start\n"
	"_start:\n"
	"	cmpl	$1, (%rsp)\n"
	"	jne	1f\n"
	"	mov	$34, %eax\n" /* pause */
	"	syscall\n"
	"1:	xor	%edi, %edi\n"
	"	mov	$231, %eax\n" /* exit_group */
	"	syscall\n"
	"	xor	%edx, %edx\n"
	"	xor	%esi, %esi\n"
	"	mov	$59, %eax\n" /* execve */
	"	syscall\n"
	"	hlt\n");
