/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The parts of the witness. main.c says what it does. */
#ifndef WITNESS_H
#define WITNESS_H

#include "tally.h"

#include <stdatomic.h>

extern const int clock_ids[CLOCKS];
/* Whether the system calls are under test, in the place of libc's functions. */
extern int judges_kernel;
/* A read under test. */
long long read_ours_ns(int clock);
/* By the system call. */
long long read_kernel_ns(int clock);

extern atomic_int stop;

/* Prints why, and exits 2. */
_Noreturn void fail(const char *what);

/* --- epoch.c: clocks that are set meanwhile, and when. */

/* Bits of the clocks that are set in this run. */
extern unsigned int clocks_set;
/* Counts the steps of the clock, three for each: before the step, after it, when it must have been followed. */
enum { SETTLED, BEING_SET, BEING_FOLLOWED, PHASES };
extern atomic_uint phase;

/* Remembers when a clock is read. Reads between which it was set have no relation. */
unsigned int epoch_of(int clock);
int is_settled(unsigned int epoch);
void begin_setting(void);
void end_setting(void);
/* In the place of end_setting(): the kernel will set the clock by itself, soon. */
void expect_setting(void);
/* Waits for as long as a step may stay unseen, and notes for how long it did: FOLLOWED or LEAP. */
void end_following(struct tallies *tallies, enum relation relation);
void set_follow_ms(long long ms);
/* A read did not know the last step, at this time of the kernel's MONOTONIC. */
void note_unseen_step(int clock, long long monotonic_ns);

/* --- Threads that watch until `stop`; the argument is a struct tallies of their own. */

void *watch_order(void *tallies);
void *watch_truth(void *tallies);
void *watch_timers(void *tallies);
void *watch_stamps(void *tallies);
/* To be called when slot of an epoch far from now can be used again. */
void forget_order(unsigned int epoch);

/* --- upsets.c: what happens to the clock. */

struct upset {
	const char *name;
	unsigned int clocks_set;
	int slews_on;
	/* Does the next thing, and returns for how many milliseconds to leave it so. */
	unsigned int (*turn)(unsigned int turn, struct tallies *tallies);
};

/* Leap seconds that came. */
extern unsigned int leaps;
/* NULL if there is none of this name. */
const struct upset *find_upset(const char *name);

/* --- guardian.c: whatever happens to this process, the machine's clock is restored. */

/* Locks the machine's clock for tests that set it, or with `shared` for those that judge it by an undisturbed kernel.
 */
void lock_clock(int shared);
/* Starts the guardian. Whatever calls this must be single-threaded. `slews_on`: an offset that is pending no more is
 * slewed by until the next second of REALTIME begins. */
void start_guardian(int slews_on);
/* Restores the clock, and waits for it. */
void end_guardian(void);
/* A descriptor that is at its end of file when this process has ended. */
int end_of_witness(void);
/* Every child of this process must call it first. */
void close_end_in_child(void);

/* --- starve.c: what happens to the publisher. */

/* Starts to do it as soon as there is a publisher; 0 if it is not known. */
int start_starving(const char *how);
/* Whether that has begun. */
int has_starved(void);
/* After end_guardian(). */
void end_starving(void);

#endif
