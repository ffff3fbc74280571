/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* reads-in-w: reads a clock in a function whose name is a mangled type in C++, until it is killed. */
#include <time.h>

int w(struct timespec *now);

__attribute__((noinline)) int w(struct timespec *now) {
	return clock_gettime(CLOCK_MONOTONIC, now) + (now->tv_sec < 0);
}

int main(void) {
	struct timespec now;

	while (w(&now) == 0) {
	}
	return 1;
}
