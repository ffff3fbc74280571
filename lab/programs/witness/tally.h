/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Counts how far reads were off, by the relation that they violate and by clock. */
#ifndef TALLY_H
#define TALLY_H

#include "clocks.h"

/* Clocks under test, as bits and as indexes. */
enum { MONOTONIC, MONOTONIC_RAW, BOOTTIME, REALTIME, TAI, CLOCKS };

/* Relations between two times, the second of which must not be earlier than the first. */
enum relation {
	/* A read of ours, then another, of any thread. */
	OURS_THEN_OURS,
	/* The system call, then a read of ours. */
	KERNEL_THEN_OURS,
	/* A read of ours, then the system call. */
	OURS_THEN_KERNEL,
	/* The return of a timer that was set to T, then a read of ours: must not be before T. */
	TIMERFD,
	NANOSLEEP,
	FUTEX,
	PPOLL,
	/* A COARSE clock, then a read of ours. */
	COARSE,
	/* time(), then REALTIME or gettimeofday. */
	TIME,
	/* The time of a file just written, then REALTIME. */
	MTIME,
	/* A clock that this process has just set, read between two system calls. */
	SET_SEEN,
	/* Not a relation of reads: for how long a step of the clock stayed unseen, once for each step. */
	FOLLOWED,
	/* The same for a leap second, from the first wrong read. */
	LEAP,
	RELATIONS
};

/* Most limits of a relation. */
enum { LIMITS = 2 };

enum { BITS = 64, PARTS = 8 };

struct tally {
	unsigned long long reads;
	/* Reads that were off by more than each limit. */
	unsigned long long beyond[LIMITS];
	long long worst_ns;
	/* By powers of two, each in eight parts. The first bucket has all reads that were not off. */
	unsigned long long histogram[BITS * PARTS];
};

struct tallies {
	struct tally of[RELATIONS][CLOCKS];
};

/*
 * Takes `RELATION=NS` or `RELATION=NS@PERCENT`: how far all or so many of the reads of each clock may be off; without a
 * limit, none may. A second call adds another limit. `timers` and `reads` mean several relations, `all` means each but
 * OURS_THEN_OURS. Returns 0 if the words are malformed or there is one limit too many.
 */
int add_limit(const char *words);

/* Returns the first limit. */
long long limit_ns(enum relation relation);

/* Records that a read was off by so many nanoseconds, or by zero or less if it was not. */
void note(struct tallies *tallies, enum relation relation, int clock, long long off_ns);

void add_tallies(struct tallies *sum, const struct tallies *part);

/* Prints each relation as a member of a JSON object. Returns the number of violations that the limits do not allow. */
unsigned long long print_tallies(const struct tallies *tallies);

#endif
