/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * execve: a process that stays the same and has another program, and one thread, which is its first.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../identity.h"
#include "../tests.h"

/* identity PID PPID WHEN [HOPS]: checks itself, and executes itself again HOPS times. */
void program_identity(char **arguments) {
	const long pid = atol(arguments[0]), parent = atol(arguments[1]);
	const char *when = arguments[2];
	const int hops = arguments[3] ? atoi(arguments[3]) : 0;
	struct execution execution;
	char left[24];

	if (pid) {
		check_known(ASK_PID, pid, when);
		check_known(ASK_TID, pid, when);
	}
	check_known(ASK_PPID, parent, when);
	check_identity(when);
	check_status(when);
	if (!hops)
		return;
	snprintf(left, sizeof(left), "%d", hops - 1);
	execution_prepare(&execution, "identity",
			  (const char *[]){arguments[0], arguments[1], arguments[2], left, NULL});
	wrong("%s: execve: %s", when, strerror(-execute(&execution)));
}

static void *execute_in_thread(void *execution) {
	const long error = execute(execution);

	skip("execve: %s", strerror(-error));
	_exit(0);
}

static void *ask_for_ever(void *nothing) {
	is_beside = 1;
	for (;;)
		check_questions(BIT(ASK_PID) | BIT(ASK_TID), "thread beside execve");
	return nothing;
}

/* Executes by the first thread, beside others or not, or by another one. */
static void run_execution(unsigned kind, pid_t parent) {
	static const char *const names[] = {"program of execve", "program of execve beside threads",
					    "program of execve in another thread"};
	struct execution execution;
	char own[24], parents[24];
	pthread_t thread;

	snprintf(own, sizeof(own), "%ld", truth(SYS_getpid, 0, 0, 0));
	snprintf(parents, sizeof(parents), "%d", parent);
	execution_prepare(&execution, "identity", (const char *[]){own, parents, names[kind], kind ? "0" : "1", NULL});
	for (unsigned i = 0; kind && i < 2; i++)
		pthread_create(&thread, NULL, ask_for_ever, NULL);
	if (kind < 2)
		execute_in_thread(&execution);
	if (pthread_create(&thread, NULL, execute_in_thread, &execution))
		_exit(0);
	for (;;)
		check_questions(BIT(ASK_PID) | BIT(ASK_TID), "first thread beside execve");
}

void test_exec(void) {
	const pid_t own = truth(SYS_getpid, 0, 0, 0);
	unsigned kind = 0;

	do {
		const pid_t child = fork_child();

		if (child == 0)
			run_execution(kind % 3, own);
		wait_child(child, "program of execve");
		check_identity("parent after a child's execve");
	} while (kind++ < 2 || !is_enough());
}
