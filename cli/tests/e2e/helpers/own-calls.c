/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* A dynamic program that reads the clock by its own instruction, once a millisecond and without end. */
#include <sys/syscall.h>
#include <time.h>

static void ask_the_kernel(struct timespec *now) {
#ifdef __x86_64__
	long result;

	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(SYS_clock_gettime), "D"(CLOCK_MONOTONIC), "S"(now)
			 : "rcx", "r11", "memory");
#else
	register long number __asm__("x8") = SYS_clock_gettime;
	register long first __asm__("x0") = CLOCK_MONOTONIC;
	register long second __asm__("x1") = (long)now;

	__asm__ volatile("svc #0" : "+r"(first) : "r"(number), "r"(second) : "memory");
#endif
}

int main(void) {
	struct timespec now, pause = {0, 1000000};

	for (;;) {
		ask_the_kernel(&now);
		nanosleep(&pause, NULL);
	}
}
