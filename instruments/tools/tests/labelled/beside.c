/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* A program on a C library that makes the system call itself; with WITH_PART_OF_MUSL, it has a string of musl's. */
#include <stdio.h>

#ifdef WITH_PART_OF_MUSL
const char unknown_error[] = "No error information";
#endif

int main(void) {
	long time[2], result;
	__asm__ volatile("syscall" : "=a"(result) : "a"(228), "D"(1), "S"(time) : "rcx", "r11", "memory");
	return printf("%ld %ld\n", result, time[0]) < 0;
}
