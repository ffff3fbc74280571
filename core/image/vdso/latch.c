/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "latch.h"
#include "isa.h"
#ifdef FP_HAS_CPU_NUMBER
#include "cpu.h"
#endif

/* The clocks' bases, two bits for each clock id: shorter than fp_find_clock(). Other clocks have no floor. */
#define BASE(name, id, base) | (fp_u32)(base) << 2 * (id)
static const fp_u32 bases = 0 FP_HRES_CLOCKS(BASE);
#define FP_FITS(name, id, base) &&(id) < FP_CLOCK_IDS && (base) < 4
enum { FP_CLOCK_IDS = 16 };
_Static_assert(1 FP_HRES_CLOCKS(FP_FITS) FP_RAW_CLOCKS(FP_FITS), "a clock's id or its base has no room in `bases`");

FP_INLINE int find(const struct fp_page *page, fp_clockid id, struct fp_place *place) {
	place->latch = &page->hres + (id == FP_CLOCK_MONOTONIC_RAW);
	place->base = bases >> (2 * id & 31) & 3;
	return (unsigned)id < FP_CLOCK_IDS;
}

/* Reads the counter in the counts of the anchors. */
FP_INLINE fp_u64 read_counter(const struct fp_page *page) {
#ifdef FP_HAS_CPU_NUMBER
	if (page->header.flags & FP_PAGE_OFFSETS) {
		fp_u32 aux;
		const fp_u64 counter = fp_read_counter_and_aux(&aux);

		return counter - fp_offset_of(&page->offsets, aux);
	}
#endif
	(void)page;
	return fp_read_counter();
}

/*
 * As fp_read_latch(), for a clock's place. Stores a bound on REALTIME's distance from UTC, too, if `utc_error_ns` is
 * not NULL; 0: unknown.
 *
 * Begins again when the writer changed the latch meanwhile, as the kernel's own vDSO does. A writer that stops or
 * dies in the middle of a change delays no reader: a change of seq makes a reader begin again, not its value.
 */
FP_INLINE int fp_read_place(const struct fp_page *page, fp_clockid id, struct fp_place place, struct fp_time *time,
			    fp_u64 *utc_error_ns) {
	const struct fp_latch *latch;
	struct fp_time found;
	fp_u64 error_ns = 0;
	fp_u32 seq;
	int answers;

	do {
		const struct fp_anchor *anchor;
		fp_u64 counter, age_cycles;

		seq = fp_load_acquire(&place.latch->copy[0].seq);
		anchor = &place.latch->copy[seq & 1];
		if (!fp_has(anchor->floors, id))
			return 0;
		counter = read_counter(page);
		latch = fp_after_counter(place.latch, counter);
		anchor = &latch->copy[seq & 1];
		age_cycles = counter - anchor->base_cycles;
		if (age_cycles >> 63 && !(seq & 1)) {
			/* The newest anchor is not in force yet. */
			anchor = &latch->copy[1];
			age_cycles = counter - anchor->base_cycles;
		}
		if (!fp_has(anchor->floors, id))
			return 0;
		answers = fp_has(anchor->clocks | anchor->by_cpu, id);
		if (age_cycles > anchor->cap_cycles) {
			answers = 0;
			/* A counter before the base was reset, and does not show how long ago that was. */
			age_cycles = age_cycles >> 63 ? 0 : anchor->cap_cycles;
		}
		found = fp_extrapolate(anchor, place.base, age_cycles);
		if (utc_error_ns && anchor->utc_error_ns)
			/* One more for each rounding down. */
			error_ns = anchor->utc_error_ns + (age_cycles * anchor->utc_error_mult >> anchor->shift) + 1;

		fp_load_barrier();
	} while (latch->copy[0].seq != seq);
	/* Only here: what an earlier round found is no valid floor any more. */
	*time = found;
	if (utc_error_ns)
		*utc_error_ns = error_ns;
	return answers;
}

FP_OUTLINE int fp_read_latch(fp_clockid id, struct fp_time *time) {
	const struct fp_page *page = fp_page_at(0);
	struct fp_place place;

	return find(page, id, &place) && fp_read_place(page, id, place, time, 0);
}

FP_COLD int fp_is_later(const struct fp_time *floor, fp_u32 kernel_sec, fp_u32 kernel_nsec) {
	/* Modulo 2^32, which also works for the older calls of 32-bit ISAs, which cut seconds to 32 bits. */
	const fp_u32 seconds = (fp_u32)floor->sec - kernel_sec;

	/* Below two seconds, or negative and so beyond the limit. */
	return seconds <= 1 && seconds * FP_NSEC_PER_SEC + (fp_u32)floor->nsec - kernel_nsec - 1 < FP_FLOOR_LIMIT_NS;
}
