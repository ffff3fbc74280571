/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * speeds: fastpath_clock_check() on a CPU that becomes three times as fast while the check measures. Prints `slow`, the
 * costs of a read and of a system call, and the reason. On the fast CPU a read costs 100 ns, a system call 250.
 */
#include <stdio.h>
#include <time.h>

#define FASTPATH_CLOCK_IMPLEMENTATION
#include <fastpath-clock.h>

static long long now_ns = 1;

static void spend(long long ns) { now_ns += now_ns < 90000 ? 3 * ns : ns; }

/* In place of the C library's. */
int clock_gettime(clockid_t id, struct timespec *now) {
	(void)id;
	spend(100);
	*now = (struct timespec){now_ns / 1000000000, now_ns % 1000000000};
	return 0;
}

long syscall(long number, ...) {
	(void)number;
	spend(250);
	return 0;
}

int main(void) {
	struct fastpath_clock_check check;

	fastpath_clock_check(&check);
	printf("slow %d, %.0f, %.0f, %s\n", check.is_slow, check.read_ns, check.syscall_ns, check.reason);
	return 0;
}
