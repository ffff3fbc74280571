/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* counter-forbidden: forbids itself to read the counter, reads clocks, executes itself again, and prints `alive`.
 * counter-forbidden wait: prints `waiting` instead, and waits.
 * counter-forbidden exec PROGRAM: executes it instead, at once.
 * counter-forbidden unseen: forbids it by an instruction that no hook sees, executes itself, and prints whether the new
 * program is `served` or `untouched`. x86-64 only. */
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

static int forbid_unseen(void) {
#ifdef __x86_64__
	long result = 157; /* prctl */

	/* No number is loaded before the instruction. */
	__asm__ volatile("nop\n	syscall"
			 : "+a"(result)
			 : "D"(PR_SET_TSC), "S"(PR_TSC_SIGSEGV)
			 : "rcx", "r11", "memory");
	return (int)result;
#else
	return -1;
#endif
}

static void print_whether_served(void) {
	char line[256];
	int is_served = 0;
	FILE *maps = fopen("/proc/self/maps", "r");

	while (maps && fgets(line, sizeof(line), maps)) {
		is_served |= strstr(line, "memfd:fastpath") != NULL;
	}
	puts(is_served ? "served" : "untouched");
}

int main(int argc, char **argv) {
	struct timespec time;
	char *again[] = {argv[0], (char *)"again", NULL};

	if (argc > 1 && !strcmp(argv[1], "unseen")) {
		char *maps[] = {argv[0], (char *)"maps", NULL};

		if (forbid_unseen()) {
			return 125;
		}
		execv("/proc/self/exe", maps);
		return 126;
	}
	if (argc > 1 && !strcmp(argv[1], "maps")) {
		print_whether_served();
		return 0;
	}
	if (argc == 2 && strcmp(argv[1], "wait")) {
		puts("alive");
		return 0;
	}
	if (prctl(PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0)) {
		perror("PR_SET_TSC");
		return 125;
	}
	if (argc > 2) {
		execl(argv[2], argv[2], "again", NULL);
		return 126;
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
