/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * ask-the-time COUNT WAY...: makes COUNT system calls in each of the ways, and exits with 7.
 *
 * own: MONOTONIC by syscall(2); cpu: this process's CPU time by libc; int80: MONOTONIC by the 32-bit ABI's entry, in
 * 64-bit code; vsyscall: time() by the vsyscall page; forever: as own, without end, ten a millisecond.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

__attribute__((noinline)) static void ask_the_kernel(void) {
	struct timespec now;

	syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
	__asm__ volatile("" ::: "memory"); /* no tail call: the caller must stay on the stack */
}

__attribute__((noinline)) static void ask_for_cpu_time(void) {
	struct timespec now;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	__asm__ volatile("" ::: "memory");
}

static void ask_by_int80(void) {
#ifdef __x86_64__
	enum { I386_clock_gettime = 265 };
	long result;

	/* The 32-bit half has no such address: the call returns EFAULT, and is counted, too. */
	__asm__ volatile("int $0x80"
			 : "=a"(result)
			 : "a"(I386_clock_gettime), "b"(CLOCK_MONOTONIC), "c"(0)
			 : "memory", "r8", "r9", "r10", "r11");
#endif
}

__attribute__((noinline)) static void ask_the_vsyscall_page(void) {
#ifdef __x86_64__
	long (*entry)(long *);
	unsigned long address = 0xffffffffff600400;

	memcpy(&entry, &address, sizeof(entry));
	entry(NULL);
	__asm__ volatile("" ::: "memory");
#endif
}

int main(int argc, char **argv) {
	long count = argc > 1 ? atol(argv[1]) : 0;

	for (int i = 2; i < argc; i++) {
		for (long n = 0; n < count || !strcmp(argv[i], "forever"); n++) {
			if (!strcmp(argv[i], "cpu")) {
				ask_for_cpu_time();
			} else if (!strcmp(argv[i], "int80")) {
				ask_by_int80();
			} else if (!strcmp(argv[i], "vsyscall")) {
				ask_the_vsyscall_page();
			} else {
				ask_the_kernel();
			}
			if (!strcmp(argv[i], "forever") && n % 10 == 0) {
				usleep(1000);
			}
		}
	}
	return 7;
}
