/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Functions of the kernel's vDSO that have nothing to do with clocks. With AT_SYSINFO_EHDR pointing at this image
 * they would be unreachable, so they are passed on, with all registers and the stack unchanged. A process whose
 * kernel lacks one of them does not find its name here either (core/image hides it), so the slot is never 0 when
 * it is used.
 */
#include "isa.h"

	.text
	/* One description for both: it takes less room. */
	.cfi_startproc
	.macro forward function, slot
	.globl __vdso_\function
	.type __vdso_\function, @function
__vdso_\function:
	endbr64
	jmp *fp_slots + \slot(%rip)
	.size __vdso_\function, . - __vdso_\function
	.endm

	forward getrandom, FP_SLOT_getrandom
	.weak getrandom
	.set getrandom, __vdso_getrandom

	forward sgx_enter_enclave, FP_SLOT_sgx_enter_enclave
	.cfi_endproc

	.section .note.GNU-stack, "", @progbits
