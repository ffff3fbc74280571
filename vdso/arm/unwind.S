/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Unwind tables name, by a relocation of no effect, the routine that reads them. Here all of them are of the kind that every
 * unwinder reads by itself, so the routine is none.
 */
	.globl __aeabi_unwind_cpp_pr0
	.hidden __aeabi_unwind_cpp_pr0
	.set __aeabi_unwind_cpp_pr0, 0

	.section .note.GNU-stack, "", %progbits
