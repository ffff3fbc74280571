/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The system call as the C library makes it (AT_SYSINFO): number and arguments in registers, all of which it wants back. In a
 * process whose kernel has a faster one, these bytes become a jump to it (crates/image/src/patch.rs), which no register
 * could be spared for.
 *
 * It is the program's call and none of the image's own, so it is not recorded as one.
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
