/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* backward-clock: a library to preload by which CLOCK_MONOTONIC goes back: each tenth read is a millisecond behind. */
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *now) {
	static atomic_uint reads;
	long failed = syscall(SYS_clock_gettime, clock, now);
	if (failed == 0 && clock == CLOCK_MONOTONIC && atomic_fetch_add(&reads, 1) % 10 == 9) {
		if ((now->tv_nsec -= 1000000) < 0) {
			now->tv_nsec += 1000000000;
			now->tv_sec--;
		}
	}
	return (int)failed;
}
