/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * children COUNT: reads CLOCK_MONOTONIC COUNT times in every kind of process that a program can create.
 *
 * Prints one line for each, `fork ok`, or what went wrong; exits 1 if anything did.
 */
#include "clocks.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

/* Argument of this program when it has execed itself. */
#define READ_ONLY "--read"

extern char **environ;

static const char *self = "/proc/self/exe";
static const char *count_text;
static int failures;

/* Returns the exit status: 0, or 3 if time went backwards. */
static int read_clock(void) {
	long long last_ns = 0;

	for (long i = 0, count = atol(count_text); i < count; i++) {
		long long now_ns = read_libc_ns(ID_MONOTONIC);

		if (now_ns < last_ns) {
			return 3;
		}
		last_ns = now_ns;
	}
	return 0;
}

static char **read_command(void) {
	static char *command[4];

	command[0] = (char *)"children";
	command[1] = (char *)READ_ONLY;
	command[2] = (char *)count_text;
	return command;
}

static void report(const char *what, pid_t child) {
	int status = -1;

	if (child < 0 || waitpid(child, &status, __WALL) != child) {
		printf("%s failed: %s\n", what, strerror(errno));
		failures++;
	} else if (status != 0) {
		printf("%s failed: status %#x\n", what, status);
		failures++;
	} else {
		printf("%s ok\n", what);
	}
	fflush(stdout);
}

static pid_t fork_and_read(void) {
	pid_t child = fork();

	if (child == 0) {
		_exit(read_clock());
	}
	return child;
}

static pid_t fork_twice_and_read(void) {
	pid_t child = fork();

	if (child == 0) {
		int status = -1;
		pid_t grandchild = fork_and_read();

		_exit(waitpid(grandchild, &status, 0) == grandchild && status == 0 ? 0 : 1);
	}
	return child;
}

static pid_t fork_and_exec(void) {
	pid_t child = fork();

	if (child == 0) {
		execv(self, read_command());
		_exit(127);
	}
	return child;
}

static pid_t vfork_and_exec(void) {
	pid_t child = vfork();

	if (child == 0) {
		execv(self, read_command());
		_exit(127);
	}
	return child;
}

static pid_t spawn(void) {
	pid_t child;

	errno = posix_spawn(&child, self, NULL, NULL, read_command(), environ);
	return errno ? -1 : child;
}

static pid_t fail_then_exec(void) {
	pid_t child = fork();

	if (child == 0) {
		if (execv("/nonexistent/program", read_command()) != -1 || errno != ENOENT) {
			_exit(4);
		}
		if (execv("/", read_command()) != -1 || errno != EACCES) {
			_exit(5);
		}
		if (read_clock()) {
			_exit(6);
		}
		execv(self, read_command());
		_exit(127);
	}
	return child;
}

static void *exec_here(void *unused) {
	(void)unused;
	execv(self, read_command());
	_exit(127);
}

/* Execs from a thread, which takes over the process: the other threads die, and the thread gets the leader's id. */
static pid_t exec_from_thread(void) {
	pid_t child = fork();

	if (child == 0) {
		pthread_t thread;

		if (pthread_create(&thread, NULL, exec_here, NULL)) {
			_exit(4);
		}
		for (;;) {
			read_clock();
		}
	}
	return child;
}

static pid_t exec_by_shell(void) {
	char command[128];
	pid_t child = fork();

	if (child == 0) {
		/* In the shell, /proc/self/exe is the shell. */
		char path[64];

		snprintf(path, sizeof(path), "/proc/%d/exe", (int)getppid());
		snprintf(command, sizeof(command), "set -e; %s %s %s; echo read | cat >/dev/null", path, READ_ONLY,
			 count_text);
		execl("/bin/sh", "sh", "-c", command, (char *)NULL);
		_exit(127);
	}
	return child;
}

static pid_t clone_without_sigchld(void) {
	pid_t child = (pid_t)syscall(SYS_clone, 0, 0, 0, 0, 0);

	if (child == 0) {
		_exit(read_clock());
	}
	return child;
}

int main(int argc, char **argv) {
	if (argc == 3 && strcmp(argv[1], READ_ONLY) == 0) {
		count_text = argv[2];
		return read_clock();
	}
	if (argc != 2 || atol(argv[1]) <= 0) {
		fputs("usage: children COUNT\n", stderr);
		return 2;
	}
	count_text = argv[1];
	report("fork", fork_and_read());
	report("fork-fork", fork_twice_and_read());
	report("fork-exec", fork_and_exec());
	report("vfork-exec", vfork_and_exec());
	report("posix_spawn", spawn());
	report("failed-exec-then-exec", fail_then_exec());
	report("exec-from-thread", exec_from_thread());
	report("exec-by-shell", exec_by_shell());
	report("clone-without-SIGCHLD", clone_without_sigchld());
	return failures ? 1 : 0;
}
