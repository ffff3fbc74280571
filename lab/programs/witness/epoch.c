/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "witness.h"

unsigned int clocks_set;
atomic_uint phase;

static long long follow_ns = 400 * 1000000LL;
/* Time of the last step, by the kernel's MONOTONIC; 0 if unknown. */
static _Atomic long long set_at_ns;
/* For how long the last step has been unseen, by clock. */
static _Atomic long long unseen_ns[CLOCKS];

void set_follow_ms(long long ms) { follow_ns = ms * 1000000; }

unsigned int epoch_of(int clock) { return clocks_set & 1U << clock ? atomic_load(&phase) : 0; }

int is_settled(unsigned int epoch) { return epoch % PHASES == SETTLED; }

/* Each phase between two steps of a clock has its own slot for the latest time, which is reused after so many
 * phases: a delayed thread does not carry a time from before a step to later phases. */
enum { SLOTS = 64 };

static _Alignas(128) _Atomic long long latest_ns[CLOCKS][SLOTS];

_Atomic long long *latest_in(unsigned int epoch, int clock) { return &latest_ns[clock][epoch / PHASES % SLOTS]; }

void begin_setting(void) {
	/* Makes the slot of a distant epoch usable again. */
	unsigned int distant = atomic_load(&phase) / PHASES + 1 + SLOTS / 2;

	for (int c = 0; c < CLOCKS; c++) {
		if (clocks_set & 1U << c) {
			atomic_store(&latest_ns[c][distant % SLOTS], 0);
		}
	}
	atomic_fetch_add(&phase, 1);
}

void end_setting(void) {
	atomic_store(&set_at_ns, read_kernel_ns(MONOTONIC));
	atomic_fetch_add(&phase, 1);
}

void expect_setting(void) {
	atomic_store(&set_at_ns, 0);
	atomic_fetch_add(&phase, 1);
}

/* Called by one thread only. */
void note_unseen_step(int clock, long long monotonic_ns) {
	long long since_ns;

	if (atomic_load(&set_at_ns) == 0) {
		/* The time of the step is unknown: take that of the first wrong read, which is not before the
		 * kernel's step. */
		atomic_store(&set_at_ns, monotonic_ns - 1);
	}
	since_ns = monotonic_ns - atomic_load(&set_at_ns);
	if (since_ns > atomic_load(&unseen_ns[clock])) {
		atomic_store(&unseen_ns[clock], since_ns);
	}
}

void end_following(struct tallies *tallies, enum relation relation) {
	const struct timespec follow = {follow_ns / 1000000000, follow_ns % 1000000000};

	nanosleep(&follow, NULL);
	atomic_fetch_add(&phase, 1);
	for (int c = 0; c < CLOCKS; c++) {
		if (clocks_set & 1U << c) {
			note(tallies, relation, c, atomic_exchange(&unseen_ns[c], 0));
		}
	}
}
