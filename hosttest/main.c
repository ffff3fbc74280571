/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * fastpath-hosttest: the command line, and the report.
 */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hosttest.h"

enum { RIGHT = 0, WRONG = 1, USAGE = 2 };

static unsigned long operations = 1000000;
static int is_json;

static const char help[] =
    "Usage: fastpath-hosttest [--operations N] [--seed S] [--json] [--list] [TEST...]\n"
    "\n"
    "Tests the host in which it runs: a sandbox, a user-mode kernel, an emulator. It makes all operations that change\n"
    "an identity, a descriptor or memory, also in races, and compares each answer that the host may give by itself\n"
    "with what the host's own trap says. Run it as a guest of your host, as root for all tests:\n"
    "\n"
    "    my-host fastpath-hosttest\n"
    "    my-host fastpath-hosttest --operations 30000 fork credentials    # two tests, if calls are slow\n"
    "\n"
    "The answers come from system call instructions in the program and in libc, and from __fastpath_syscall if the\n"
    "image at AT_SYSINFO_EHDR exports it. The truth comes from an instruction in memory that the program maps while "
    "it\n"
    "runs: your host must not rewrite it.\n"
    "\n"
    "  --operations N   how many answers to compare, in all tests together (default: 1000000, about a minute)\n"
    "  --seed S         picks calls, ways and delays (default: 1); races differ from run to run all the same\n"
    "  --json           prints one JSON object instead of lines\n"
    "  --list           lists the tests\n"
    "  --help           prints this\n"
    "  TEST...          runs these tests only\n"
    "\n"
    "A line for each test: its name, compared answers, wrong answers, and the reason if it, or a part of it, was\n"
    "skipped. The first wrong answers follow.\n"
    "\n"
    "Exit status: 0 all answers were right, 1 some were wrong, 2 wrong usage, or the tests cannot run here.\n";

static int fail(const char *what, const char *detail) {
	fprintf(stderr, "fastpath-hosttest: %s%s%s\n", what, detail ? ": " : "", detail ? detail : "");
	return USAGE;
}

static void list(void) {
	for (unsigned i = 0; i < tests_count; i++)
		printf("%-20s %s\n", tests[i].name, tests[i].what);
}

static int is_wanted(const struct test *test, char **names) {
	for (char **name = names; *name; name++)
		if (strcmp(*name, test->name) == 0)
			return 1;
	return !*names;
}

static int are_known(char **names) {
	for (char **name = names; *name; name++) {
		unsigned i = 0;

		while (i < tests_count && strcmp(*name, tests[i].name))
			i++;
		if (i == tests_count)
			return fail("there is no such test (--list lists them)", *name);
	}
	return 0;
}

/* Ends what a test has left behind: its processes become this one's children when their parents end. */
static void end_children(void) {
	int status;
	pid_t child;

	while ((child = waitpid(-1, &status, WNOHANG)) >= 0)
		if (child == 0)
			nap(1000);
}

static void run_in_child(const struct test *test) {
	const pid_t child = fork();
	int status;

	if (child < 0) {
		skip("fork: %s", strerror(errno));
		return;
	}
	if (child == 0) {
		alarm(SECONDS_MOST);
		test->run();
		_exit(0);
	}
	while (waitpid(child, &status, 0) < 0)
		if (errno != EINTR)
			return;
	if (WIFSIGNALED(status))
		wrong("the test was ended by signal %d%s", WTERMSIG(status),
		      WTERMSIG(status) == SIGALRM ? " (it hung)" : "");
	else if (WEXITSTATUS(status))
		wrong("the test ended with status %d", WEXITSTATUS(status));
	end_children();
}

static void print_quoted(const char *text) {
	putchar('"');
	for (; *text; text++) {
		if (*text == '"' || *text == '\\')
			putchar('\\');
		if ((unsigned char)*text >= ' ')
			putchar(*text);
	}
	putchar('"');
}

static void print_json(const struct test *test, int is_first) {
	const unsigned messages = results->messages < MOST_MESSAGES ? results->messages : MOST_MESSAGES;

	printf("%s{\"name\":\"%s\",\"operations\":%lu,\"wrong\":%lu,\"skipped\":", is_first ? "" : ",", test->name,
	       results->operations, results->wrong);
	if (results->skipped[0])
		print_quoted(results->skipped);
	else
		printf("null");
	printf(",\"messages\":[");
	for (unsigned i = 0; i < messages; i++) {
		if (i)
			putchar(',');
		print_quoted(results->message[i]);
	}
	printf("]}");
}

static void print_line(const struct test *test) {
	printf("%-20s %9lu operations, %lu wrong", test->name, results->operations, results->wrong);
	if (results->skipped[0])
		printf("; skipped: %s", results->skipped);
	putchar('\n');
	for (unsigned i = 0; i < results->messages && i < MOST_MESSAGES; i++)
		printf("    %s\n", results->message[i]);
}

static int run(char **names) {
	unsigned long weights = 0, wrongs = 0, sum = 0;
	int is_first = 1;

	for (unsigned i = 0; i < tests_count; i++)
		weights += is_wanted(&tests[i], names) ? tests[i].weight : 0;
	if (is_json)
		printf("{\"entry\":%s,\"tests\":[", entry_address ? "true" : "false");
	else
		printf("ways: instructions, libc%s\n", entry_address ? ", __fastpath_syscall" : "");
	for (unsigned i = 0; i < tests_count; i++) {
		if (!is_wanted(&tests[i], names))
			continue;
		results_select(i);
		pick_seed(seed * MOST_TESTS + i);
		budget = operations * tests[i].weight / weights;
		fflush(stdout);
		if (tests[i].in_first)
			tests[i].run();
		else
			run_in_child(&tests[i]);
		if (is_json)
			print_json(&tests[i], is_first);
		else
			print_line(&tests[i]);
		is_first = 0;
		wrongs += results->wrong;
		sum += results->operations;
	}
	if (is_json)
		printf("],\"operations\":%lu,\"wrong\":%lu}\n", sum, wrongs);
	else
		printf("%lu operations, %lu wrong answers\n", sum, wrongs);
	return wrongs ? WRONG : RIGHT;
}

static int number(const char *text, unsigned long *value) {
	char *end;

	errno = 0;
	*value = strtoul(text, &end, 0);
	return errno || *end || end == text || *text == '-' ? -1 : 0;
}

int main(int argc, char **argv) {
	enum { OPERATIONS = 256, SEED, JSON, LIST, HELP };
	static const struct option options[] = {{"operations", required_argument, NULL, OPERATIONS},
						{"seed", required_argument, NULL, SEED},
						{"json", no_argument, NULL, JSON},
						{"list", no_argument, NULL, LIST},
						{"help", no_argument, NULL, HELP},
						{0}};
	int option;

	/* How the tests execute this program anew. */
	if (argc > 1 && strcmp(argv[1], "child") == 0)
		return run_child(argc, argv);
	seed = 1;
	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1)
		switch (option) {
		case OPERATIONS:
			if (number(optarg, &operations) || !operations)
				return fail("--operations needs a number above 0, not", optarg);
			break;
		case SEED:
			if (number(optarg, &seed))
				return fail("--seed needs a number, not", optarg);
			break;
		case JSON:
			is_json = 1;
			break;
		case LIST:
			list();
			return RIGHT;
		case HELP:
			fputs(help, stdout);
			return RIGHT;
		default:
			return fail("--help explains the usage", NULL);
		}
	if (are_known(argv + optind))
		return USAGE;
	if (calls_prepare())
		return fail("the truth needs executable memory, and mmap or mprotect refuses it", strerror(errno));
	if (results_create())
		return fail("neither memfd_create nor a file in /tmp can be shared", strerror(errno));
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	return run(argv + optind);
}
