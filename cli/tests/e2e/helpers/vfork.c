/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * vfork: a child in its memory prints `child` and stays until the end of the input; then both end.
 * vfork MS: the child stays for MS milliseconds, and another one follows soon, again and again.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int stay_until_end_of_input(void) {
	char byte;
	int status;
	pid_t child = vfork();

	if (child == 0) {
		write(1, "child\n", 6);
		while (read(0, &byte, 1) > 0) {
		}
		_exit(0);
	}
	return waitpid(child, &status, 0) != child || status != 0;
}

static void stay_again_and_again(int ms) {
	const struct timespec time = {ms / 1000, ms % 1000 * 1000000L}, between = {0, 50000000};
	int status;

	write(1, "child\n", 6);
	for (;;) {
		pid_t child = vfork();

		if (child == 0) {
			nanosleep(&time, NULL);
			_exit(0);
		}
		waitpid(child, &status, 0);
		nanosleep(&between, NULL);
	}
}

int main(int argc, char **argv) {
	if (argc > 1) {
		stay_again_and_again(atoi(argv[1]));
	}
	return stay_until_end_of_input();
}
