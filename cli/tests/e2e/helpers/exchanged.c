/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* exchanged TIMES LINK FIRST SECOND: executes LINK TIMES times while another process points it to FIRST and SECOND in
 * turns. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void lead(const char *link, const char *other, const char *to) {
	unlink(other);
	if (symlink(to, other) == 0)
		rename(other, link);
}

int main(int argc, char **argv) {
	char other[4096];
	pid_t exchanger;

	if (argc != 5)
		return 2;
	snprintf(other, sizeof other, "%s.new", argv[2]);
	lead(argv[2], other, argv[3]);
	exchanger = fork();
	if (exchanger == 0)
		for (int i = 0; getppid() != 1; i++)
			lead(argv[2], other, argv[3 + i % 2]);
	for (int i = 0; i < atoi(argv[1]); i++) {
		pid_t child = fork();
		if (child == 0) {
			execl(argv[2], argv[2], (char *)0);
			_exit(127);
		}
		waitpid(child, NULL, 0);
	}
	kill(exchanger, SIGKILL);
	waitpid(exchanger, NULL, 0);
	return 0;
}
