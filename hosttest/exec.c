/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Executes this program anew: `child NAME DESCRIPTOR TEST BUDGET [ARGUMENTS]`.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "hosttest.h"

enum { NAME = 2, DESCRIPTOR, TEST, BUDGET, FIRST_ARGUMENT };

extern char **environ;

static const char *own_path(void) {
	static char path[4096];
	const ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);

	return length > 0 ? path : (const char *)getauxval(AT_EXECFN);
}

void execution_prepare(struct execution *execution, const char *name, const char *const arguments[]) {
	const unsigned long numbers[] = {results_descriptor(), results_selected(), budget};
	unsigned count = 0;

	execution->path = own_path();
	execution->argv[count++] = "fastpath-hosttest";
	execution->argv[count++] = "child";
	execution->argv[count++] = name;
	for (unsigned i = 0; i < 3; i++) {
		snprintf(execution->numbers[i], sizeof(execution->numbers[i]), "%lu", numbers[i]);
		execution->argv[count++] = execution->numbers[i];
	}
	for (; *arguments && count < EXEC_ARGUMENTS; arguments++)
		execution->argv[count++] = *arguments;
	execution->argv[count] = NULL;
}

long execute(const struct execution *execution) {
	execve(execution->path, (char **)execution->argv, environ);
	return -errno;
}

int run_child(int argc, char **argv) {
	if (argc < FIRST_ARGUMENT || calls_prepare() || results_open(atoi(argv[DESCRIPTOR])))
		return 2;
	alarm(SECONDS_CHILD);
	results_select(atoi(argv[TEST]) % MOST_TESTS);
	budget = strtoul(argv[BUDGET], NULL, 10);
	for (unsigned i = 0; i < child_programs_count; i++)
		if (strcmp(argv[NAME], child_programs[i].name) == 0) {
			child_programs[i].run(argv + FIRST_ARGUMENT);
			return 0;
		}
	return 2;
}
