/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What the tests have found, in a file that all its processes have mapped, programs that it executes too.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "hosttest.h"

struct results *results;
unsigned long budget;
unsigned long seed;
_Thread_local int is_beside;

static struct results *all;
static int file = -1;

static int map(void) {
	void *memory = mmap(NULL, sizeof(*all) * MOST_TESTS, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);

	if (memory == MAP_FAILED)
		return -1;
	all = memory;
	results = all;
	return 0;
}

int results_create(void) {
	char path[] = "/tmp/fastpath-hosttest.XXXXXX";

	file = syscall(SYS_memfd_create, "fastpath-hosttest", 0);
	if (file < 0) {
		file = mkstemp(path);
		if (file < 0 || unlink(path))
			return -1;
	}
	return ftruncate(file, sizeof(*all) * MOST_TESTS) ? -1 : map();
}

int results_open(int descriptor) {
	file = descriptor;
	return map();
}

int results_descriptor(void) { return file; }

void results_select(unsigned test) { results = &all[test]; }

unsigned results_selected(void) { return results - all; }

static void note(const char *format, va_list arguments) {
	const unsigned index = atomic_fetch_add(&results->messages, 1);

	if (index < MOST_MESSAGES)
		vsnprintf(results->message[index], MESSAGE_BYTES, format, arguments);
}

static void count(void) {
	atomic_fetch_add_explicit(&results->operations, 1, memory_order_relaxed);
	if (!is_beside)
		atomic_fetch_add_explicit(&results->spent, 1, memory_order_relaxed);
}

void wrong(const char *format, ...) {
	va_list arguments;

	atomic_fetch_add(&results->wrong, 1);
	va_start(arguments, format);
	note(format, arguments);
	va_end(arguments);
}

int expect(int is_right, const char *format, ...) {
	va_list arguments;

	count();
	if (is_right)
		return 1;
	atomic_fetch_add(&results->wrong, 1);
	va_start(arguments, format);
	note(format, arguments);
	va_end(arguments);
	return 0;
}

int expect_equal(long got, long wanted, const char *when, const char *call, enum way way) {
	count();
	if (got == wanted)
		return 1;
	wrong("%s: %s by %s: %ld instead of %ld", when, call, way_names[way], got, wanted);
	return 0;
}

void skip(const char *format, ...) {
	va_list arguments;

	if (results->skipped[0])
		return;
	va_start(arguments, format);
	vsnprintf(results->skipped, MESSAGE_BYTES, format, arguments);
	va_end(arguments);
}

int is_enough(void) { return is_enough_of(1); }

int is_enough_of(double share) {
	return atomic_load(&results->spent) >= (unsigned long)(budget * share) ||
	       atomic_load(&results->wrong) >= MOST_WRONG;
}

static _Thread_local unsigned long state = 88172645463325252ul;

void pick_seed(unsigned long value) { state = (value + 1) * 0x9e3779b97f4a7c15ul | 1; }

/* xorshift64*. */
unsigned long pick(unsigned long below) {
	state ^= state >> 12;
	state ^= state << 25;
	state ^= state >> 27;
	return (state * 0x2545f4914f6cdd1dul >> 16) % below;
}
