/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * fastpath-hosttest: compares each answer that a host gives to its guest with what the host's own trap says.
 */
#ifndef HOSTTEST_H
#define HOSTTEST_H

#include <stdatomic.h>
#include <stddef.h>
#include <sys/types.h>

#include "calls.h"

enum { MOST_TESTS = 48, MOST_MESSAGES = 6, MESSAGE_BYTES = 200, MOST_WRONG = 200 };

/* What a test has found. It lies in memory that all processes of the program share. */
struct results {
	atomic_ulong operations;
	/* Those that count for the budget. */
	atomic_ulong spent;
	atomic_ulong wrong;
	atomic_uint messages;
	char message[MOST_MESSAGES][MESSAGE_BYTES];
	char skipped[MESSAGE_BYTES];
};

struct test {
	const char *name;
	const char *what;
	/* Share of all operations. */
	unsigned weight;
	void (*run)(void);
	/* Runs in the first process, which its host may know better than others. */
	int in_first;
};

extern const struct test tests[];
extern const unsigned tests_count;

/* Set for the test that runs. */
extern struct results *results;
extern unsigned long budget;
extern unsigned long seed;
/* Set in threads that ask while others make changes: the budget is for the changes. */
extern _Thread_local int is_beside;

/* Counts an operation, and a wrong answer unless `is_right`. Returns is_right. */
int expect(int is_right, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same where got and wanted are numbers; negative ones are shown as error codes. */
int expect_equal(long got, long wanted, const char *when, const char *call, enum way way);
void wrong(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Says why the test, or a part of it, cannot be run here. */
void skip(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Whether the test has made its operations, or has found enough that is wrong. */
int is_enough(void);
/* Whether this part of the budget has been used. */
int is_enough_of(double share);

/* results.c */
int results_create(void);
int results_open(int descriptor);
int results_descriptor(void);
void results_select(unsigned test);
unsigned results_selected(void);

/* A number below `below`, from the seed. */
unsigned long pick(unsigned long below);
void pick_seed(unsigned long value);

/* process.c: children that end by themselves if they hang. */
enum { SECONDS_MOST = 600, SECONDS_CHILD = 60 };
pid_t fork_child(void);
/* Waits for a child. One that ends by a signal or with another status than 0 is wrong. */
void wait_child(pid_t child, const char *what);
/* Returns memory that children share. */
void *shared_memory(size_t size);
void nap(long microseconds);

/* Runs `body` in a forked child, and waits for it. */
void in_child(void (*body)(void *), void *argument, const char *what);
/*
 * exec.c: the arguments that make this program, executed anew, run what child_programs has under a name, with the
 * results of the same test. Made before the execution, because a child after vfork, or a thread, must not allocate.
 */
enum { EXEC_ARGUMENTS = 12 };
struct execution {
	const char *path;
	const char *argv[EXEC_ARGUMENTS + 1];
	char numbers[3][24];
};
struct child_program {
	const char *name;
	void (*run)(char **arguments);
};
extern const struct child_program child_programs[];
extern const unsigned child_programs_count;
void execution_prepare(struct execution *execution, const char *name, const char *const arguments[]);
/* Returns only if it fails, -errno. */
long execute(const struct execution *execution);
int run_child(int argc, char **argv);

#endif
