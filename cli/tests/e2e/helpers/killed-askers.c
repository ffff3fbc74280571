/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* killed-askers TIMES PROGRAM ARGUMENTS: kills TIMES children, each at another moment of its exec; then executes
 * PROGRAM. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv) {
	if (argc < 3)
		return 2;
	for (int i = 0; i < atoi(argv[1]); i++) {
		pid_t child = fork();
		if (child < 0) {
			perror("fork");
			return 1;
		}
		if (child == 0) {
			execl("/bin/true", "true", (char *)0);
			_exit(127);
		}
		usleep(i % 50 * 20);
		kill(child, SIGKILL);
		waitpid(child, NULL, 0);
	}
	/* A slot without a waiting thread is free after two seconds. */
	sleep(5);
	execvp(argv[2], argv + 2);
	perror(argv[2]);
	return 127;
}
