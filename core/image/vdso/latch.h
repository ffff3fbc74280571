/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Reading a latch. page.h describes its fields and its writer's guarantees.
 *
 * Fields are read by plain loads between fp_load_acquire() and fp_load_barrier(). A field torn by the writer is only
 * used in arithmetic, and the sequence count then discards the result.
 */
#ifndef FASTPATH_LATCH_H
#define FASTPATH_LATCH_H

#include "barrier.h"
#include "compiler.h"
#include "counter.h"
#include "pointers.h"
#include "types.h"

/* The address of one member of the page. */
#define FP_PAGE_PART(member) fp_page_at(__builtin_offsetof(struct fp_page, member))

FP_INLINE const struct fp_header *fp_header(void) { return FP_PAGE_PART(header); }
FP_INLINE const struct fp_latch *fp_hres(void) { return FP_PAGE_PART(hres); }

#ifndef FP_KNOWS_ITS_PLACE
/* Nothing jumps to code of this ISA that was moved: surgery/inject/src/plan/redirection/stub.rs. */
FP_INLINE int fp_is_moved(const void *hres) {
	(void)hres;
	return 0;
}
#endif

_Static_assert(__builtin_offsetof(struct fp_page, raw) ==
		   __builtin_offsetof(struct fp_page, hres) + sizeof(struct fp_latch),
	       "raw is found behind hres");

struct fp_time {
	fp_u64 sec;
	unsigned long nsec; /* one register on every ISA */
};

/* Returns whether `clocks` or `floors` of an anchor contain a clock. */
FP_INLINE int fp_has(fp_u32 clocks, fp_clockid id) { return clocks >> id & 1; }

/* Requires that `age_cycles` is at most the anchor's cap, so that it fits 32 bits: one multiplication on every ISA. */
FP_INLINE struct fp_time fp_extrapolate(const struct fp_anchor *anchor, unsigned base, fp_u64 age_cycles) {
	fp_u32 age = (fp_u32)age_cycles;
	struct fp_time now;

#if __SIZEOF_POINTER__ == 4
	/* clang 19 sees that the age fits 32 bits, drops the cut, and then multiplies 64 bits. */
	__asm__("" : "+r"(age));
#endif
	now.sec = anchor->base[base].sec;
	/* Below two seconds (page.h), so it fits 32 bits, on ISAs whose registers have no more. */
	now.nsec = ((fp_u64)age * anchor->mult + anchor->base[base].nsec_shifted) >> anchor->shift;
#if __SIZEOF_POINTER__ == 4
	/* clang 19 would compute this after the look at `seq`, and keep all of the anchor on the stack until then. */
	__asm__ volatile("" : "+r"(now.nsec));
#endif
	if (now.nsec >= FP_NSEC_PER_SEC) {
		now.nsec -= FP_NSEC_PER_SEC;
		now.sec++;
	}
	return now;
}

/* Whether the counter is read after all earlier loads of the thread. */
enum fp_order { FP_UNORDERED, FP_ORDERED };

/*
 * The hot path: reads the newest anchor once. Returns 0 where it does not answer at this moment; fp_read_latch()
 * may.
 *
 * A counter that was read early is applied to no wrong anchor: before the newest anchor's base, it is a huge age. It is
 * read no later than an ordered one: see fp_after_counter().
 */
FP_INLINE int fp_read_newest(const struct fp_latch *latch, fp_clockid id, unsigned base, enum fp_order order,
			     struct fp_time *now) {
	const struct fp_anchor *anchor = &latch->copy[0];
	fp_u64 counter, age_cycles;
	fp_u32 seq;

	seq = fp_load_acquire(&anchor->seq);
	if (fp_unlikely(seq & 1))
		return 0;
	if (fp_unlikely(!fp_has(anchor->clocks, id)))
		return 0;

	counter = order == FP_ORDERED ? fp_read_counter() : fp_read_counter_unordered();
	anchor = fp_after_counter(anchor, counter);
	age_cycles = counter - anchor->base_cycles;
	/* One compare for both: a counter before the base is a huge unsigned age. */
	if (fp_unlikely(age_cycles > anchor->cap_cycles))
		return 0;
	*now = fp_extrapolate(anchor, base, age_cycles);

	fp_load_barrier();
	return fp_likely(anchor->seq == seq);
}

/* nsec / 1000, exact for all 32 bits, and nsec has 30: 274877907 is 2^38 / 1000, rounded up. */
FP_INLINE long fp_to_usec(unsigned long nsec) { return (fp_u64)nsec * 274877907u >> 38; }

/* The place of a clock on the page. */
struct fp_place {
	const struct fp_latch *latch;
	unsigned base;
};

/* Returns whether the page can hold the clock. The caller handles REALTIME and MONOTONIC. */
FP_INLINE int fp_find_clock(const struct fp_latch *hres, fp_clockid id, struct fp_place *place) {
	place->latch = hres;
	if (id == FP_CLOCK_BOOTTIME) {
		place->base = FP_BASE_BOOTTIME;
	} else if (id == FP_CLOCK_MONOTONIC_RAW) {
		place->latch += 1; /* raw, which follows hres: page.h */
		place->base = 0;
	} else if (id == FP_CLOCK_TAI) {
		place->base = FP_BASE_TAI;
	} else {
		return 0;
	}
	return 1;
}

/*
 * Reads any clock, by whichever anchor applies. Returns 0 where none answers at this moment; `time` is then the
 * floor, the latest time that any reader can have had (page.h), or is left as it was if there is none.
 */
FP_INTERNAL int fp_read_latch(fp_clockid id, struct fp_time *time);
/* For `nsec` before the first look: more than two seconds, whatever `sec` is, so that fp_is_later() returns 0. */
#define FP_NO_FLOOR (~0x7fffffffL)
/* Returns whether a floor is later than the kernel's answer, which must then not be shown. */
FP_INTERNAL int fp_is_later(const struct fp_time *floor, fp_u32 kernel_sec, fp_u32 kernel_nsec);

/* clock_gettime in the exceptional cases: returns the time of any anchor that answers, else the kernel's, but nothing
 * earlier than a reader was shown. */
FP_INTERNAL int fp_read_slowly(fp_clockid id, struct fp_timespec *ts);

#endif
