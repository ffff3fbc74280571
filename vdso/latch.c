/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "latch.h"

FP_INLINE int find(fp_clockid id, struct fp_place *place) {
	place->latch = fp_hres();
	place->base = id;
	return (unsigned)id <= FP_CLOCK_MONOTONIC || fp_find_clock(id, place);
}

/*
 * A writer takes well under a microsecond, ten times a second. A second attempt that fails too is the work of a page
 * gone wild, and the kernel does not depend on it.
 */
enum { ATTEMPTS = 2 };

enum fp_outcome fp_read_patiently(fp_clockid id, struct fp_time *now) {
	struct fp_place place;
	int attempts = ATTEMPTS;

	/* The compiler is not to know how many, or it writes them all out. */
	__asm__("" : "+r"(attempts));
	if (!find(id, &place))
		return FP_ASK_KERNEL;
	for (; attempts; attempts--) {
		const struct fp_latch *latch = place.latch;
		fp_u32 seq = fp_load_acquire(&latch->copy[0].seq);
		const struct fp_anchor *anchor = &latch->copy[seq & 1];
		fp_u64 counter, age_cycles;

		if (!fp_answers(anchor, id))
			return FP_ASK_KERNEL;
		counter = fp_read_counter();
		latch = fp_after_counter(latch, counter);
		anchor = &latch->copy[seq & 1];
		age_cycles = counter - anchor->base_cycles;
		if (age_cycles >> 63 && !(seq & 1)) {
			/* The newest anchor is not in force yet. */
			anchor = &latch->copy[1];
			if (!fp_answers(anchor, id))
				return FP_ASK_KERNEL;
			age_cycles = counter - anchor->base_cycles;
		}
		if (age_cycles > anchor->cap_cycles)
			return FP_ASK_KERNEL;
		*now = fp_extrapolate(anchor, place.base, age_cycles);

		fp_load_barrier();
		if (latch->copy[0].seq == seq)
			return FP_ANSWERED;
	}
	return FP_ASK_KERNEL;
}
