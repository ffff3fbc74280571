/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* An ordinary program that reads a clock often, until it is killed. */
#include <time.h>

int main(void) {
	for (;;) {
		struct timespec now;
		clock_gettime(CLOCK_MONOTONIC, &now);
		for (volatile int work = 0; work < 4000; work++) {
		}
	}
}
