/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Processes that share their parent's memory, and so the host's pages in it: vfork, clone with CLONE_VM, posix_spawn.
 */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../identity.h"
#include "../tests.h"

extern char **environ;

enum { STACK_BYTES = 256 << 10 };

static void *stack_top(void) {
	static char *stack;

	if (!stack) {
		stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (stack == MAP_FAILED) {
			skip("mmap: %s", strerror(errno));
			_exit(0);
		}
	}
	return stack + STACK_BYTES;
}

static pid_t parent_pid;

/* Runs in the parent's memory with the TLS of one of its threads: no function of libc. */
static int child_in_shared_memory(void *when) {
	const long own = truth(SYS_getpid, 0, 0, 0);

	for (enum way way = BY_SITE; way < WAYS; way++)
		if ((way == BY_SITE || way == BY_ENTRY) && can_ask(ASK_PID, way)) {
			expect_equal(ask_question(ASK_PID, way), own, when, "getpid", way);
			expect_equal(ask_question(ASK_TID, way), own, when, "gettid", way);
			expect_equal(ask_question(ASK_PPID, way), parent_pid, when, "getppid", way);
		}
	check_identity_without_libc(when);
	truth(SYS_exit_group, 0, 0, 0);
	return 0;
}

static __attribute__((noinline)) pid_t vfork_child(void) {
	const pid_t child = vfork();

	if (child == 0)
		child_in_shared_memory("child of vfork");
	return child;
}

static pid_t vfork_by_clone(void) {
	return clone(child_in_shared_memory, stack_top(), CLONE_VM | CLONE_VFORK | SIGCHLD,
		     "child of clone(CLONE_VM|CLONE_VFORK)");
}

/* Threads of the parent ask while it has one child after the other. */
void test_vfork(void) {
	struct race *race = race_new("thread beside a child of vfork", OF_PROCESS);
	struct readers readers;

	parent_pid = truth(SYS_getpid, 0, 0, 0);
	race_learn(race, 0);
	for (int with_threads = 0; with_threads < 2; with_threads++) {
		if (with_threads)
			readers_start(&readers, race);
		do {
			const pid_t child = pick(2) ? vfork_child() : vfork_by_clone();

			if (child < 0) {
				skip("vfork or clone: %s", strerror(errno));
				break;
			}
			check_identity("parent after vfork");
			wait_child(child, "child of vfork");
			check_identity("parent after the end of its child of vfork");
		} while (!is_enough_of(with_threads ? 1 : 0.4));
	}
	readers_join(&readers, race);
}

/* Parent and child run at the same time, and both ask. */
void test_clone_vm(void) {
	parent_pid = truth(SYS_getpid, 0, 0, 0);
	do {
		const int files = pick(2) ? CLONE_FILES : 0;
		const pid_t child =
		    clone(child_in_shared_memory, stack_top(), CLONE_VM | files | SIGCHLD, "child of clone(CLONE_VM)");
		int status = 0;
		pid_t ended = 0;

		if (child < 0) {
			skip("clone(CLONE_VM): %s", strerror(errno));
			return;
		}
		while (ended == 0) {
			check_known(ASK_PID, parent_pid, "parent beside its child of clone(CLONE_VM)");
			check_known(ASK_TID, parent_pid, "parent beside its child of clone(CLONE_VM)");
			ended = waitpid(child, &status, WNOHANG);
		}
		expect(ended == child && WIFEXITED(status) && WEXITSTATUS(status) == 0,
		       "child of clone(CLONE_VM): wait status %#x", status);
		check_identity("parent after its child of clone(CLONE_VM)");
	} while (!is_enough());
}

/* Returns 0 if the program could not be executed, which a child without shared memory says by its status. */
static int wait_program(pid_t child) {
	enum { NOT_EXECUTED = 127 };
	int status = 0;

	if (waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == NOT_EXECUTED) {
		skip("posix_spawn: the program cannot be executed");
		return 0;
	}
	expect(status == 0, "program of posix_spawn: wait status %#x", status);
	return 1;
}

void test_spawn(void) {
	do {
		char own[24];
		struct execution execution;
		pid_t child;
		int error;

		snprintf(own, sizeof(own), "%ld", truth(SYS_getpid, 0, 0, 0));
		execution_prepare(&execution, "identity", (const char *[]){"0", own, "program of posix_spawn", NULL});
		error = posix_spawn(&child, execution.path, NULL, NULL, (char **)execution.argv, environ);
		if (error) {
			skip("posix_spawn of %s: %s", execution.path, strerror(error));
			return;
		}
		check_identity("parent beside a program of posix_spawn");
		if (!wait_program(child))
			return;
		check_identity("parent after posix_spawn");
	} while (!is_enough());
}
