/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What a read of a descriptor yields, and checks of it.
 */
#ifndef READS_H
#define READS_H

#include "hosttest.h"

/* Results of a read of 16 bytes, as bits. */
enum kind {
	KIND_RANDOM = 1,
	KIND_ZERO = 2,
	/* /dev/null. */
	KIND_END = 4,
	/* EBADF: closed, or not open for reading. */
	KIND_CLOSED = 8,
	/* A pipe without data. */
	KIND_EMPTY = 16,
	KIND_OTHER = 32,
};

const char *kind_name(unsigned kind);
enum kind read_kind(int descriptor, enum way way);
/* Reads by all ways. */
void check_kind(int descriptor, enum kind wanted, const char *when);
/* Opens a file of the kind, with close-on-exec. */
int open_kind(enum kind kind);

enum { KINDS = 64 };

/* A descriptor that is changed while others read it. It lies in shared memory. */
struct reading {
	int descriptor;
	const char *when;
	atomic_int is_over;
	atomic_int readers;
	atomic_ulong begun;
	atomic_ulong done;
	/* Kinds that are allowed before, and after each change, the last ones only: by number modulo their count. */
	atomic_uint kinds[KINDS];
};

struct reading *reading_new(int descriptor, enum kind kind, const char *when);
void reading_begin(struct reading *reading, unsigned kinds);
void reading_done(struct reading *reading);
void reading_ask(struct reading *reading);
void reading_loop(struct reading *reading);
enum { READING_THREADS = 3 };
void reading_start(struct reading *reading, unsigned long threads[READING_THREADS]);
void reading_join(struct reading *reading, unsigned long threads[READING_THREADS]);

#endif
