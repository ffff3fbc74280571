/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The parts of the witness. main.c describes it. */
#ifndef WITNESS_H
#define WITNESS_H

#include "tally.h"

#include <stdatomic.h>

/* --- common.c */

extern const int clock_ids[CLOCKS];
/* Whether the system calls are under test instead of libc's functions. */
extern int judges_kernel;
/* Reads a clock in the way that is under test. */
long long read_ours_ns(int clock);
/* Reads a clock by the system call. */
long long read_kernel_ns(int clock);

extern atomic_int stop;

/* Prints the reason, and exits 2. */
_Noreturn void fail(const char *what);
/* Writes to a file of /sys or /proc. */
void write_word(const char *path, const char *word);

/* --- epoch.c: the times at which clocks are set. */

/* Bits of the clocks that are set in this run. */
extern unsigned int clocks_set;
/* Phases of a step of the clock: before it, during it, and until it must have been followed. `phase` counts them. */
enum { SETTLED, BEING_SET, BEING_FOLLOWED, PHASES };
extern atomic_uint phase;

/* Returns the present phase of a clock. Reads between which the clock was set cannot be compared. */
unsigned int epoch_of(int clock);
int is_settled(unsigned int epoch);
/* Returns where the latest time is that any thread has read of a clock between two steps; 0: none yet. */
_Atomic long long *latest_in(unsigned int epoch, int clock);
void begin_setting(void);
void end_setting(void);
/* Instead of end_setting(): the kernel will soon set the clock itself. */
void expect_setting(void);
/* Waits for as long as a step may stay unseen, and notes for how long it did, as FOLLOWED or LEAP. */
void end_following(struct tallies *tallies, enum relation relation);
void set_follow_ms(long long ms);
/* Records that a read missed the last step, at this time of the kernel's MONOTONIC. */
void note_unseen_step(int clock, long long monotonic_ns);

/* --- namespace.c */

/* Goes on in a child in another time namespace, which executes the command if there is one. */
void enter_namespace(char **command);

/* --- Threads that watch until `stop`. The argument is the thread's own struct tallies. */

void *watch_order(void *tallies);
void *watch_truth(void *tallies);
void *watch_timers(void *tallies);
void *watch_stamps(void *tallies);

/* --- upsets.c: changes to the clock. */

struct upset {
	const char *name;
	unsigned int clocks_set;
	int slews_on;
	/* Makes the next change, and returns for how many milliseconds to keep it. */
	unsigned int (*turn)(unsigned int turn, struct tallies *tallies);
};

/* Number of leap seconds that occurred. */
extern unsigned int leaps;
/* The error in microseconds that is stated after each change, as by a daemon that synchronizes the clock; 0: none. */
extern long stated_us;
/* Returns NULL if there is none of this name. */
const struct upset *find_upset(const char *name);

/* --- guardian.c: restores the machine's clock whatever happens to this process. */

/* Starts the guardian. The caller must be single-threaded. `slews_on`: the kernel slews by an offset that is no
 * longer pending until the next second of REALTIME begins. */
void start_guardian(int slews_on);
/* Restores the clock, and waits until it is done. */
void end_guardian(void);
/* Returns a descriptor that reaches end of file when this process has ended. */
int end_of_witness(void);
/* Every child of this process must call this first. */
void close_end_in_child(void);

/* --- starve.c: disturbances of the publisher. */

/* Starts the disturbance as soon as there is a publisher. Returns 0 if `how` is unknown. */
int start_starving(const char *how);
/* Returns whether it has started. */
int has_starved(void);
/* Waits for the end of the disturbance. Call it after end_guardian(). */
void end_starving(void);

#endif
