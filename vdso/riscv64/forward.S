/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Functions of the kernel's vDSO that have nothing to do with clocks, passed on with all registers and the stack
 * unchanged except t2, which calls may change. A process whose kernel lacks one of them does not find its name here
 * either (crates/image hides it), so the slot is never 0 when it is used.
 */
#include "isa.h"

	.text
	.balign 4
	.cfi_startproc
	.macro forward function, slot
	.globl __vdso_\function
	.type __vdso_\function, %function
__vdso_\function:
1:	auipc	t2, %pcrel_hi(fp_slots + \slot)
	ld	t2, %pcrel_lo(1b)(t2)
	jr	t2
	.size __vdso_\function, . - __vdso_\function
	.endm

	forward getrandom, FP_SLOT_getrandom
	forward flush_icache, FP_SLOT_flush_icache
	forward riscv_hwprobe, FP_SLOT_riscv_hwprobe
	.cfi_endproc

	.section .note.GNU-stack, "", %progbits
