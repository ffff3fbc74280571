/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* full-page: a static program without a byte of padding behind its code. It ends with 0 if the last 3,584 bytes of its
 * code are as they were assembled. Compiled with -nostdlib -static. */
__asm__(".section .text\n"
	".balign 4096\n"
	".globl _start\n"
	"_start:\n"
	"	xor	%edi, %edi\n"
	"	lea	filled(%rip), %rsi\n"
	"	mov	$3584, %ecx\n"
	"1:	cmpb	$0xc3, (%rsi)\n"
	"	je	2f\n"
	"	mov	$1, %edi\n"
	"2:	inc	%rsi\n"
	"	dec	%ecx\n"
	"	jnz	1b\n"
	"	mov	$231, %eax\n"
	"	syscall\n"
	".balign 512\n"
	"filled:\n"
	".fill 3584, 1, 0xc3\n");
