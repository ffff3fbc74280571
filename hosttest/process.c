/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Children of the tests.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "hosttest.h"

pid_t fork_child(void) {
	const pid_t child = fork();

	if (child < 0) {
		skip("fork: %s", strerror(errno));
		_exit(0);
	}
	if (child == 0) {
		signal(SIGALRM, SIG_DFL);
		alarm(SECONDS_CHILD);
	}
	return child;
}

void wait_child(pid_t child, const char *what) {
	int status;

	while (waitpid(child, &status, 0) < 0)
		if (errno != EINTR) {
			wrong("%s: waitpid: %s", what, strerror(errno));
			return;
		}
	if (WIFSIGNALED(status))
		wrong("%s: ended by signal %d%s", what, WTERMSIG(status),
		      WTERMSIG(status) == SIGALRM ? " (it hung)" : "");
	else if (WEXITSTATUS(status))
		wrong("%s: ended with status %d", what, WEXITSTATUS(status));
}

void in_child(void (*body)(void *), void *argument, const char *what) {
	const pid_t child = fork_child();

	if (child == 0) {
		body(argument);
		_exit(0);
	}
	wait_child(child, what);
}

void *shared_memory(size_t size) {
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (memory == MAP_FAILED) {
		skip("mmap of %zu bytes of shared memory: %s", size, strerror(errno));
		_exit(0);
	}
	return memory;
}

void nap(long microseconds) {
	const struct timespec time = {microseconds / 1000000, microseconds % 1000000 * 1000};

	nanosleep(&time, NULL);
}
