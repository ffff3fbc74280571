/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The system call of the C library (AT_SYSINFO): number and arguments are in registers, all of which must be
 * preserved. In a process whose kernel has a faster one, an instance replaces these bytes by a jump to it
 * (core/image/src/instance.rs), for which no register is free.
 *
 * The call belongs to the program and not to the image, so it is not recorded.
 */
	.text
	.balign 4
	.globl __kernel_vsyscall
	.type __kernel_vsyscall, @function
__kernel_vsyscall:
	.cfi_startproc
	int	$0x80
	ret
	.skip	2, 0x90			/* room for the jump */
	.cfi_endproc
	.size __kernel_vsyscall, . - __kernel_vsyscall

	.section .note.GNU-stack, "", @progbits
