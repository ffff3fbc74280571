/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* reads-of-clocks: reads MONOTONIC in one function, and REALTIME and a COARSE clock in another, until it is killed. */
#include <time.h>

int m(struct timespec *now);
int r(struct timespec *now);

__attribute__((noinline)) int m(struct timespec *now) {
	int error = 0;

	for (int i = 0; i < 70; i++)
		error += clock_gettime(CLOCK_MONOTONIC, now);
	return error;
}

__attribute__((noinline)) int r(struct timespec *now) {
	int error = 0;

	/* A COARSE clock costs a fraction of the other. */
	for (int i = 0; i < 80; i++)
		error += clock_gettime(i % 8 == 0 ? CLOCK_REALTIME : CLOCK_REALTIME_COARSE, now);
	return error;
}

int main(void) {
	struct timespec now;

	while (m(&now) == 0 && r(&now) == 0) {
	}
	return 1;
}
