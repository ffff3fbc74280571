/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* spawn fork|vfork|posix_spawn|thread|failing|fexecve|execveat|twice CMD [ARGS]: starts CMD in this way; exits as it
 * does. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static char **command;

static void *exec_here(void *unused) {
	execvp(command[0], command);
	return unused;
}

static void be_command(const char *how) {
	pthread_t thread;

	if (strcmp(how, "thread") == 0) {
		pthread_create(&thread, NULL, exec_here, NULL);
		pthread_join(thread, NULL);
	} else if (strcmp(how, "failing") == 0) {
		for (int i = 0; i < 3; i++) {
			execv("/nonexistent/program", command);
			execv("/", command);
		}
		execvp(command[0], command);
	} else if (strcmp(how, "fexecve") == 0) {
		fexecve(open(command[0], O_RDONLY | O_CLOEXEC), command, environ);
	} else if (strcmp(how, "execveat") == 0) {
		/* The command is a path here. */
		int fd = open(command[0], O_PATH | O_CLOEXEC);

		syscall(SYS_execveat, fd, "", command, environ, 0x1000 /* AT_EMPTY_PATH */);
	} else if (strcmp(how, "twice") == 0) {
		pid_t child = fork();

		if (child == 0) {
			execvp(command[0], command);
			_exit(127);
		}
		waitpid(child, NULL, 0);
		execvp(command[0], command);
	} else {
		execvp(command[0], command);
	}
	_exit(127);
}

int main(int argc, char **argv) {
	pid_t child;
	int status;

	if (argc < 3) {
		return 2;
	}
	command = argv + 2;
	if (strcmp(argv[1], "posix_spawn") == 0) {
		if (posix_spawnp(&child, command[0], NULL, NULL, command, environ)) {
			return 127;
		}
	} else if (strcmp(argv[1], "vfork") == 0) {
		child = vfork();
		if (child == 0) {
			execvp(command[0], command);
			_exit(127);
		}
	} else {
		child = fork();
		if (child == 0) {
			be_command(argv[1]);
		}
	}
	return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
