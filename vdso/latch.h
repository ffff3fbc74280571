/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Reading a latch. page.h says what its fields mean and which guarantees its writer gives.
 *
 * Fields are read by plain loads between fp_load_acquire() and fp_load_barrier(). One that is torn by the writer only
 * ever reaches arithmetic, and the sequence count then says to throw the result away.
 */
#ifndef FASTPATH_LATCH_H
#define FASTPATH_LATCH_H

#include "barrier.h"
#include "compiler.h"
#include "counter.h"
#include "types.h"

/*
 * Right below the image: its address comes from the linker script, its memory from whoever maps the image. Not const,
 * for it changes.
 */
extern FP_HIDDEN struct fp_page fp_page;

struct fp_time {
	fp_u64 sec;
	fp_u64 nsec;
};

enum fp_outcome {
	FP_ANSWERED,
	FP_ASK_KERNEL, /* the page does not answer this clock now */
	FP_TRY_LATCH,  /* the newest anchor does not answer at this instant; the one before it may */
};

FP_INLINE int fp_answers(const struct fp_anchor *anchor, fp_clockid id) { return anchor->clocks >> id & 1; }

/* `age_cycles` is at most the anchor's cap, so it fits 32 bits: one multiplication on every ISA. */
FP_INLINE struct fp_time fp_extrapolate(const struct fp_anchor *anchor, unsigned base, fp_u64 age_cycles) {
	struct fp_time now;

	now.sec = anchor->base[base].sec;
	now.nsec = ((fp_u64)(fp_u32)age_cycles * anchor->mult + anchor->base[base].nsec_shifted) >> anchor->shift;
	if (now.nsec >= FP_NSEC_PER_SEC) {
		now.nsec -= FP_NSEC_PER_SEC;
		now.sec++;
	}
	return now;
}

/* The hot path: the newest anchor, once. */
FP_INLINE enum fp_outcome fp_read_newest(const struct fp_latch *latch, fp_clockid id, unsigned base,
					 struct fp_time *now) {
	const struct fp_anchor *anchor = &latch->copy[0];
	fp_u64 age_cycles;
	fp_u32 seq;

	FP_FORGET_ORIGIN(anchor);
	seq = fp_load_acquire(&anchor->seq);
	if (fp_unlikely(seq & 1))
		return FP_TRY_LATCH;
	if (fp_unlikely(!fp_answers(anchor, id)))
		return FP_ASK_KERNEL;

	age_cycles = fp_read_counter() - anchor->base_cycles;
	/* One compare for both: a counter before the base is a huge unsigned age. */
	if (fp_unlikely(age_cycles > anchor->cap_cycles))
		return age_cycles >> 63 ? FP_TRY_LATCH : FP_ASK_KERNEL;
	*now = fp_extrapolate(anchor, base, age_cycles);

	fp_load_barrier();
	if (fp_unlikely(anchor->seq != seq))
		return FP_TRY_LATCH;
	return FP_ANSWERED;
}

/* All other cases. FP_ANSWERED or FP_ASK_KERNEL. */
FP_HIDDEN enum fp_outcome fp_read_latch(const struct fp_latch *latch, fp_clockid id, unsigned base,
					struct fp_time *now);

#endif
