/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Processes that are started: fork, clone without memory, and storms of them.
 */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../identity.h"
#include "../tests.h"

void test_identity(void) {
	check_status("first process");
	while (!is_enough())
		check_identity("first process");
	check_status("first process, at the end");
}

/* Checks a child with the ids that its parent knows. */
static void check_child(pid_t parent, const char *when) {
	const long own = truth(SYS_getpid, 0, 0, 0);

	check_known(ASK_PPID, parent, when);
	check_known(ASK_PID, own, when);
	check_known(ASK_TID, own, when);
	check_identity(when);
}

/* A line of descendants, each of which checks itself before, while and after it has a child. */
static void descend(unsigned generations, pid_t parent) {
	const pid_t own = truth(SYS_getpid, 0, 0, 0);
	pid_t child;

	check_child(parent, "child of fork");
	if (generations == 0)
		return;
	child = fork_child();
	if (child == 0) {
		descend(generations - 1, own);
		_exit(0);
	}
	check_known(ASK_PID, own, "parent after fork");
	check_known(ASK_TID, own, "parent after fork");
	wait_child(child, "child of fork");
	check_child(parent, "parent after its child");
}

static pid_t raw_clone(void) {
	const pid_t child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);

	if (child == 0)
		alarm(SECONDS_CHILD);
	return child;
}

/* Children that run at the same time, by both calls. */
static void storm(void) {
	enum { CHILDREN = 6 };
	const pid_t own = truth(SYS_getpid, 0, 0, 0);
	pid_t children[CHILDREN];

	for (unsigned i = 0; i < CHILDREN; i++) {
		children[i] = i % 2 ? raw_clone() : fork_child();
		if (children[i] == 0) {
			check_child(own, "child of a storm");
			_exit(0);
		}
		check_known(ASK_PID, own, "parent in a storm");
	}
	for (unsigned i = 0; i < CHILDREN; i++) {
		if (children[i] < 0)
			skip("clone: %s", strerror(errno));
		else
			wait_child(children[i], "child of a storm");
	}
}

void test_fork(void) {
	do {
		const pid_t own = truth(SYS_getpid, 0, 0, 0);
		const pid_t child = fork_child();

		if (child == 0) {
			descend(pick(3), own);
			check_status("child of fork");
			_exit(0);
		}
		wait_child(child, "child of fork");
		storm();
	} while (!is_enough());
}
