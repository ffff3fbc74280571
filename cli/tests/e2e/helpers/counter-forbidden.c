/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* counter-forbidden: forbids itself to read the counter, reads clocks, executes itself again, and prints `alive`.
 * counter-forbidden wait: prints `waiting` instead, and waits. */
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

int main(int argc, char **argv) {
	struct timespec time;
	char *again[] = {argv[0], (char *)"again", NULL};

	if (argc > 1 && strcmp(argv[1], "wait")) {
		puts("alive");
		return 0;
	}
	if (prctl(PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0)) {
		perror("PR_SET_TSC");
		return 125;
	}
	if (argc > 1) {
		write(1, "waiting\n", 8);
		for (;;) {
			pause();
		}
	}
	for (int i = 0; i < 1000; i++) {
		clock_gettime(CLOCK_MONOTONIC, &time);
		clock_gettime(CLOCK_REALTIME, &time);
	}
	execv("/proc/self/exe", again);
	return 126;
}
