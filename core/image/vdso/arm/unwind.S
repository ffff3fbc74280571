/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Unwind tables name, by a relocation without effect, the routine that reads them. Every unwinder reads these tables
 * without it, so the routine is 0.
 */
	.globl __aeabi_unwind_cpp_pr0
	.hidden __aeabi_unwind_cpp_pr0
	.set __aeabi_unwind_cpp_pr0, 0

	.section .note.GNU-stack, "", %progbits
