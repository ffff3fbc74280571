/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * One number of a descriptor that stands for one file after the other, while threads read it.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "../reads.h"
#include "../tests.h"

#ifndef SYS_close_range
#define SYS_close_range 436
#endif

/* The number that is read, above those that the tests otherwise use. */
enum { NUMBER = 40, SOURCES = 4 };

static const enum kind kinds[SOURCES] = {KIND_RANDOM, KIND_ZERO, KIND_END, KIND_EMPTY};
static int sources[SOURCES];

static void change(struct reading *reading, long result, const char *name) {
	if (result < 0) {
		skip("%s: %s", name, strerror(errno));
		/* What it would have changed remains. */
		atomic_store(&reading->is_over, 1);
		return;
	}
	reading_done(reading);
}

static void check_now(struct reading *reading, enum kind kind, const char *when) {
	check_kind(reading->descriptor, kind, when);
}

/* Replaces the file in one call. */
static void replace(struct reading *reading, unsigned source, int by_dup3) {
	const char *name = by_dup3 ? "dup3" : "dup2";

	reading_begin(reading, kinds[source]);
	change(reading, by_dup3 ? dup3(sources[source], NUMBER, O_CLOEXEC) : dup2(sources[source], NUMBER), name);
	check_now(reading, kinds[source], name);
}

static long close_it(int by_range) { return by_range ? syscall(SYS_close_range, NUMBER, NUMBER, 0) : close(NUMBER); }

/* Closes it, and makes the same number stand for another file. Other threads of this process open nothing. */
static void close_and_open(struct reading *reading, unsigned source, int by_range) {
	const char *name = by_range ? "close_range" : "close";

	reading_begin(reading, KIND_CLOSED);
	change(reading, close_it(by_range), name);
	if (atomic_load(&reading->is_over))
		return;
	check_now(reading, KIND_CLOSED, name);
	reading_begin(reading, kinds[source]);
	change(reading, fcntl(sources[source], F_DUPFD_CLOEXEC, NUMBER), "fcntl(F_DUPFD_CLOEXEC)");
	check_now(reading, kinds[source], "fcntl(F_DUPFD_CLOEXEC)");
}

/* Frees it and opens a file by name, which takes the lowest free number: all below must be in use. */
static void close_and_open_by_name(struct reading *reading) {
	static const char *const names[] = {"/dev/urandom", "/dev/zero", "/dev/null"};
	const unsigned source = pick(3);
	int fillers[NUMBER], count = 0, file;

	while ((file = dup(sources[1])) >= 0 && file < NUMBER)
		fillers[count++] = file;
	if (file >= 0)
		close(file);
	for (unsigned i = 0; i < 8; i++) {
		reading_begin(reading, KIND_CLOSED);
		change(reading, close(NUMBER), "close");
		reading_begin(reading, kinds[(source + i) % 3]);
		file = open(names[(source + i) % 3], (i % 2 ? O_RDONLY : O_RDWR) | O_CLOEXEC);
		change(reading, file, "open");
		if (file != NUMBER) {
			wrong("open: descriptor %d instead of %d", file, NUMBER);
			_exit(0);
		}
		check_now(reading, kinds[(source + i) % 3], "open after close");
	}
	while (count)
		close(fillers[--count]);
}

static void change_in_race(void *nothing) {
	unsigned long threads[READING_THREADS];
	struct reading *reading;

	(void)nothing;
	for (unsigned i = 0; i < SOURCES; i++)
		sources[i] = open_kind(kinds[i]);
	if (dup2(sources[0], NUMBER) != NUMBER) {
		skip("dup2: %s", strerror(errno));
		return;
	}
	reading = reading_new(NUMBER, KIND_RANDOM, "descriptor that is replaced");
	check_kind(NUMBER, KIND_RANDOM, "dup2 of /dev/urandom");
	reading_start(reading, threads);
	do {
		replace(reading, pick(SOURCES), pick(2));
		close_and_open(reading, pick(SOURCES), pick(2));
		close_and_open_by_name(reading);
		if (pick(4) == 0)
			nap(pick(100));
	} while (!is_enough() && !atomic_load(&reading->is_over));
	reading_join(reading, threads);
}

/* A child has the same file under the same number, until one of them changes it. */
static void inherit(enum kind kind) {
	const pid_t child = fork_child();

	if (child == 0) {
		check_kind(NUMBER, kind, "child with an inherited descriptor");
		dup2(sources[1], NUMBER);
		check_kind(NUMBER, KIND_ZERO, "child that has replaced a descriptor");
		_exit(0);
	}
	check_kind(NUMBER, kind, "beside a child that replaces a descriptor");
	wait_child(child, "child with an inherited descriptor");
}

/* The same without threads, where a host may answer more. */
static void change_alone(void *nothing) {
	struct reading *reading;

	(void)nothing;
	for (unsigned i = 0; i < SOURCES; i++)
		sources[i] = open_kind(kinds[i]);
	if (dup2(sources[0], NUMBER) != NUMBER)
		return;
	reading = reading_new(NUMBER, KIND_RANDOM, "descriptor that is replaced");
	do {
		replace(reading, pick(SOURCES), pick(2));
		close_and_open(reading, pick(SOURCES), 0);
		close_and_open_by_name(reading);
		inherit(atomic_load(&reading->kinds[atomic_load(&reading->begun) % KINDS]));
		reading_ask(reading);
	} while (!is_enough_of(0.4));
}

void test_descriptors(void) {
	in_child(change_alone, NULL, "descriptors without threads");
	in_child(change_in_race, NULL, "descriptors with threads");
}
