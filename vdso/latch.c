/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "latch.h"

static enum fp_outcome attempt(const struct fp_latch *latch, fp_clockid id, unsigned base, struct fp_time *now) {
	fp_u32 seq = fp_load_acquire(&latch->copy[0].seq);
	const struct fp_anchor *anchor = &latch->copy[seq & 1];
	fp_u64 counter, age_cycles;

	if (!fp_answers(anchor, id))
		return FP_ASK_KERNEL;
	counter = fp_read_counter();
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
	*now = fp_extrapolate(anchor, base, age_cycles);

	fp_load_barrier();
	return latch->copy[0].seq == seq ? FP_ANSWERED : FP_TRY_LATCH;
}

/*
 * A writer takes well under a microsecond, ten times a second. A second attempt that fails too is the work of a page
 * gone wild, and the kernel does not depend on it.
 */
FP_COLD enum fp_outcome fp_read_latch(const struct fp_latch *latch, fp_clockid id, unsigned base, struct fp_time *now) {
	enum fp_outcome outcome = attempt(latch, id, base, now);

	if (outcome == FP_TRY_LATCH)
		outcome = attempt(latch, id, base, now);
	return outcome == FP_ANSWERED ? FP_ANSWERED : FP_ASK_KERNEL;
}
