/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Where signal handlers return to, by a RET: it needs no landing pad, and must not have one, for debuggers and unwinders
 * know it by these two instructions.
 *
 * Its unwind information leads to the frame record that the kernel leaves on the signal frame, with x29 pointing at it: the
 * interrupted x29 and pc. The other registers are for those who know the layout of a signal frame, as they all do here;
 * DWARF has no number for a pc beside x30 that all of them take.
 *
 * Unwinders look a return address up by the byte before it, hence the no-op in front that belongs to the description.
 */
#define NR_rt_sigreturn 139

	.text
	.balign 16
	.cfi_startproc
	.cfi_signal_frame
	.cfi_def_cfa x29, 0
	.cfi_offset x29, 0
	.cfi_offset x30, 8
	nop
	.globl __kernel_rt_sigreturn
	.type __kernel_rt_sigreturn, %function
__kernel_rt_sigreturn:
	mov	x8, #NR_rt_sigreturn
	svc	#0
	.size __kernel_rt_sigreturn, . - __kernel_rt_sigreturn
	.cfi_endproc

	.section .note.GNU-stack, "", %progbits
