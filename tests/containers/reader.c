/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Reads CLOCK_MONOTONIC fifty times a second, for ever; exits 3 if it went backwards. */
#define _POSIX_C_SOURCE 200809L
#include <time.h>

int main(void) {
	const struct timespec pause = {0, 20 * 1000 * 1000};
	struct timespec last = {0, 0};

	for (;;) {
		struct timespec now;

		if (clock_gettime(CLOCK_MONOTONIC, &now)) {
			return 1;
		}
		if (now.tv_sec < last.tv_sec || (now.tv_sec == last.tv_sec && now.tv_nsec < last.tv_nsec)) {
			return 3;
		}
		last = now;
		nanosleep(&pause, 0);
	}
}
