/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Tables of descriptors: shared by processes, and separated in one process.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../reads.h"
#include "../tests.h"

#ifndef SYS_close_range
#define SYS_close_range 436
#endif
enum { NUMBER = 50, CLOSE_RANGE_UNSHARE_FLAG = 2 };

static const enum kind kinds[] = {KIND_RANDOM, KIND_ZERO, KIND_END, KIND_EMPTY};
static int sources[4];

static void prepare(void) {
	for (unsigned i = 0; i < 4; i++)
		sources[i] = open_kind(kinds[i]);
	if (dup2(sources[0], NUMBER) != NUMBER) {
		skip("dup2: %s", strerror(errno));
		_exit(0);
	}
}

/* Another process, which has the same table, replaces what this one and its threads read. */
static void replaced_by_sharer(void *nothing) {
	unsigned long threads[READING_THREADS];
	struct reading *reading;
	pid_t sharer;

	(void)nothing;
	prepare();
	check_kind(NUMBER, KIND_RANDOM, "before the table is shared");
	reading = reading_new(NUMBER, KIND_RANDOM, "table that another process shares");
	sharer = syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0);
	if (sharer < 0) {
		skip("clone(CLONE_FILES): %s", strerror(errno));
		return;
	}
	if (sharer == 0) {
		do {
			const unsigned source = pick(4);

			reading_begin(reading, kinds[source]);
			if (dup2(sources[source], NUMBER) == NUMBER)
				reading_done(reading);
			check_kind(NUMBER, kinds[source], "sharer of a table");
			nap(pick(200));
		} while (!is_enough_of(0.4));
		_exit(0);
	}
	reading_start(reading, threads);
	while (waitpid(sharer, NULL, WNOHANG) == 0)
		reading_ask(reading);
	reading_join(reading, threads);
}

static atomic_int has_separated;

/* A thread with a table of its own replaces its descriptor, and the others keep theirs. */
static void *separate(void *by_range) {
	const int result =
	    by_range ? syscall(SYS_close_range, 1000, 1001, CLOSE_RANGE_UNSHARE_FLAG) : unshare(CLONE_FILES);

	if (result)
		skip("%s: %s", by_range ? "close_range(CLOSE_RANGE_UNSHARE)" : "unshare(CLONE_FILES)", strerror(errno));
	else
		for (unsigned i = 0; i < 20; i++) {
			dup2(sources[1 + i % 3], NUMBER);
			check_kind(NUMBER, kinds[1 + i % 3], "thread with a table of its own");
			atomic_store(&has_separated, 1);
		}
	atomic_store(&has_separated, 1);
	return NULL;
}

static void separated(void *by_range) {
	pthread_t thread;

	prepare();
	check_kind(NUMBER, KIND_RANDOM, "before a thread separates its table");
	if (pthread_create(&thread, NULL, separate, by_range)) {
		skip("pthread_create");
		return;
	}
	while (!atomic_load(&has_separated))
		check_kind(NUMBER, KIND_RANDOM, "while a thread separates its table");
	for (unsigned i = 0; i < 10; i++)
		check_kind(NUMBER, KIND_RANDOM, "beside a thread with a table of its own");
	dup2(sources[1], NUMBER);
	check_kind(NUMBER, KIND_ZERO, "beside a thread with a table of its own");
	pthread_join(thread, NULL);
	dup2(sources[0], NUMBER);
	check_kind(NUMBER, KIND_RANDOM, "after a thread with a table of its own");
}

void test_tables(void) {
	static int by_range;

	in_child(replaced_by_sharer, NULL, "table that processes share");
	do {
		in_child(separated, NULL, "separated table");
		in_child(separated, &by_range, "table separated by close_range");
	} while (!is_enough());
}
