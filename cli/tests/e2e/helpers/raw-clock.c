/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Reads a clock by its own system calls: inline, and by libc's function for any call. With the argument "filtered",
 * under a seccomp filter that allows everything.
 */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int read_inline(struct timespec *time) {
#if defined(__x86_64__)
	long result;

	__asm__ volatile("mov $228, %%eax\n	syscall" : "=a"(result) : "D"(1), "S"(time) : "rcx", "r11", "memory");
	return (int)result;
#elif defined(__i386__)
	int result;

	__asm__ volatile("mov $265, %%eax\n	int $0x80" : "=a"(result) : "b"(1), "c"(time) : "memory");
	return result;
#else
	register long x0 __asm__("x0") = 1;
	register struct timespec *x1 __asm__("x1") = time;

	__asm__ volatile("mov x8, #113\n	svc #0" : "+r"(x0) : "r"(x1) : "x8", "memory");
	return (int)x0;
#endif
}

int main(int argc, char **argv) {
	struct timespec time;

	(void)argv;
	if (argc > 1) {
		struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
		struct sock_fprog program = {1, &allow};
		if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
			return 2;
		}
	}
	printf("ready\n");
	fflush(stdout);
	for (;;) {
		if (read_inline(&time) || syscall(SYS_clock_gettime, 0, &time)) {
			return 1;
		}
		usleep(1000);
	}
}
