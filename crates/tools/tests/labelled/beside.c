/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* A program on a C library that makes the system call itself. */
#include <stdio.h>

int main(void) {
	long time[2], result;
	__asm__ volatile("syscall" : "=a"(result) : "a"(228), "D"(1), "S"(time) : "rcx", "r11", "memory");
	return printf("%ld %ld\n", result, time[0]) < 0;
}
