/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* forbid-counter CMD [ARGS]: CMD with a forbidden counter: a read kills it. Without CMD it prints `alive`. */
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>

int main(int argc, char **argv) {
	if (argc < 2) {
		puts("alive");
		return 0;
	}
	if (prctl(PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0)) {
		perror("PR_SET_TSC");
		return 125;
	}
	execvp(argv[1], argv + 1);
	perror(argv[1]);
	return 126;
}
