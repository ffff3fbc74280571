/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The return addresses of signal handlers. Debuggers and unwinders recognize these two functions by their bytes as
 * well as by their unwind information, which describes where in the signal frame the interrupted registers are.
 *
 * Unwinders look a return address up by the byte before it, so each description also covers the no-op in front of
 * its function.
 */
#include "isa.h"

/* struct sigcontext (asm/sigcontext.h) */
#define SC_EDI 16
#define SC_ESI 20
#define SC_EBP 24
#define SC_ESP 28
#define SC_EBX 32
#define SC_EDX 36
#define SC_ECX 40
#define SC_EAX 44
#define SC_EIP 56

/* DWARF: the numbers of the registers, and the opcodes for one saved at an address. */
#define DW_EAX 0
#define DW_ECX 1
#define DW_EDX 2
#define DW_EBX 3
#define DW_ESP 4
#define DW_EBP 5
#define DW_ESI 6
#define DW_EDI 7
#define DW_EIP 8
#define DW_CFA_def_cfa_expression 0x0f
#define DW_CFA_expression 0x10
#define DW_OP_deref 0x06
#define DW_OP_plus_uconst 0x23
#define DW_OP_breg4 0x74		/* esp + a number; below 64 it takes one byte */

/* The sigcontext begins `at` bytes above the stack pointer. */
	.macro frame at
	.cfi_escape DW_CFA_def_cfa_expression, 3, DW_OP_breg4, \at + SC_ESP, DW_OP_deref
	saved DW_EAX, \at + SC_EAX
	saved DW_ECX, \at + SC_ECX
	saved DW_EDX, \at + SC_EDX
	saved DW_EBX, \at + SC_EBX
	saved DW_EBP, \at + SC_EBP
	saved DW_ESI, \at + SC_ESI
	saved DW_EDI, \at + SC_EDI
	saved DW_EIP, \at + SC_EIP
	.endm
	.macro saved register, at
	.cfi_escape DW_CFA_expression, \register, 2, DW_OP_breg4, \at
	.endm

/* The same where only a pointer to the ucontext is on the stack, `at` bytes above the stack pointer. */
#define UC_MCONTEXT 20
	.macro rt_frame at
	.cfi_escape DW_CFA_def_cfa_expression, 6, DW_OP_breg4, \at, DW_OP_deref, DW_OP_plus_uconst, UC_MCONTEXT + SC_ESP, DW_OP_deref
	rt_saved DW_EAX, \at, SC_EAX
	rt_saved DW_ECX, \at, SC_ECX
	rt_saved DW_EDX, \at, SC_EDX
	rt_saved DW_EBX, \at, SC_EBX
	rt_saved DW_EBP, \at, SC_EBP
	rt_saved DW_ESI, \at, SC_ESI
	rt_saved DW_EDI, \at, SC_EDI
	rt_saved DW_EIP, \at, SC_EIP
	.endm
	.macro rt_saved register, at, register_at
	.cfi_escape DW_CFA_expression, \register, 5, DW_OP_breg4, \at, DW_OP_deref, DW_OP_plus_uconst, UC_MCONTEXT + \register_at
	.endm

	.text
	.balign 4
	.cfi_startproc simple
	.cfi_signal_frame
	.cfi_return_column DW_EIP
	frame 4				/* the signal's number is below it */
	nop
	.globl __kernel_sigreturn
	.type __kernel_sigreturn, @function
__kernel_sigreturn:
	pop	%eax
	frame 0
	mov	$FP_NR_sigreturn, %eax
	int	$0x80
	.size __kernel_sigreturn, . - __kernel_sigreturn
	nop
	.cfi_endproc

	.balign 4
	.cfi_startproc simple
	.cfi_signal_frame
	.cfi_return_column DW_EIP
	rt_frame 8			/* the third argument of the handler */
	nop
	.globl __kernel_rt_sigreturn
	.type __kernel_rt_sigreturn, @function
__kernel_rt_sigreturn:
	mov	$FP_NR_rt_sigreturn, %eax
	int	$0x80
	.size __kernel_rt_sigreturn, . - __kernel_rt_sigreturn
	nop
	.cfi_endproc

	.section .note.GNU-stack, "", @progbits
