/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* without-vdso: a program without a libc, which only waits and does not look for a vDSO. For -nostdlib. */
#include <sys/syscall.h>

void _start(void);
void _start(void) {
	for (;;) {
#if defined(__x86_64__)
		long number = SYS_pause;

		__asm__ volatile("syscall" : "+a"(number) : : "rcx", "r11", "memory");
#elif defined(__aarch64__)
		register long number __asm__("x8") = SYS_ppoll;
		register long fds __asm__("x0") = 0;
		register long count __asm__("x1") = 0;
		register long timeout __asm__("x2") = 0;
		register long mask __asm__("x3") = 0;

		__asm__ volatile("svc 0" : "+r"(fds) : "r"(number), "r"(count), "r"(timeout), "r"(mask) : "memory");
#endif
	}
}
