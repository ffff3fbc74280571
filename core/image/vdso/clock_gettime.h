/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * clock_gettime for one type of timespec, FP_TIMESPEC. The including file defines that, ASK_KERNEL(id, ts) for what
 * the page does not answer, and READ_SLOWLY, the name of the function for the exceptional cases.
 */
#include "latch.h"

/* Seconds are cut to the type's width, as the kernel cuts them. */
FP_INLINE int answer(FP_TIMESPEC *ts, struct fp_time now) {
	ts->tv_sec = now.sec;
	ts->tv_nsec = now.nsec;
	return 0;
}

/*
 * Reads by any anchor that answers, else returns the kernel's time, but nothing earlier than a reader was shown. Out
 * of line, so that it takes no register of the hot path.
 *
 * The kernel's time is returned only if no anchor answers after it was read. An anchor that came into force while this
 * reader was stopped may be behind the kernel by now, and the next read would go back. One that comes into force later
 * is compared with the kernel then (publish_changes() in core/page/src/writer/). The floor is that of the second
 * look, because it covers what other readers were shown meanwhile. If the hook has withdrawn the page since the first
 * look, it has waited for the kernel, and the answer may be from before that: the first look's floor stays in force.
 */
FP_COLD int READ_SLOWLY(fp_clockid id, FP_TIMESPEC *ts) {
	struct fp_time time;

	time.nsec = FP_NO_FLOOR;
	if (!fp_read_latch(id, &time)) {
		const int error = ASK_KERNEL(id, ts);

		if (error)
			return error;
		if (!fp_read_latch(id, &time) && !fp_is_later(&time, ts->tv_sec, ts->tv_nsec))
			return 0;
	}
	return answer(ts, time);
}

FP_INLINE int read_clock(fp_clockid id, FP_TIMESPEC *ts, const struct fp_latch *latch, unsigned base) {
	struct fp_time now;

	if (fp_likely(fp_read_newest(latch, id, base, FP_ORDERED, &now)))
		return answer(ts, now);
	return READ_SLOWLY(id, ts);
}

#ifdef __x86_64__
/*
 * Within clock_gettime, without a second copy of the straight code: all of it must fit one function of the kernel's
 * (surgery/inject/src/plan/redirection/entry_body.rs). The second name of the call keeps gcc from merging it with that
 * for the COARSE clocks, which would move registers for both.
 */
FP_HIDDEN int ask_kernel_too(fp_clockid id, FP_TIMESPEC *ts) __asm__("fp_call_clock_gettime");

FP_INLINE int read_any_clock(fp_clockid id, FP_TIMESPEC *ts) {
	const struct fp_latch *hres = fp_hres();
	struct fp_place place;

	if (fp_unlikely(fp_is_moved(hres)))
		return ASK_KERNEL(id, ts);
	if (fp_likely((unsigned)id <= FP_CLOCK_MONOTONIC)) {
		/* REALTIME is 0 and MONOTONIC 1, as clock ids and as bases. */
		place.latch = hres;
		place.base = id;
	} else {
		/* Directly to the kernel: see below. */
		if (fp_likely(id == FP_CLOCK_REALTIME_COARSE || id == FP_CLOCK_MONOTONIC_COARSE))
			return ASK_KERNEL(id, ts);
		if (!fp_find_clock(hres, id, &place))
			return ask_kernel_too(id, ts);
	}
	return read_clock(id, ts, place.latch, place.base);
}
#else
#if __SIZEOF_POINTER__ == 8
/* The clocks whose base is not in the cache line of the rate: one line more, or another latch. */
static __attribute__((noinline)) int other_clock(fp_clockid id, FP_TIMESPEC *ts) {
	struct fp_place place;

	if (!fp_find_clock(fp_hres(), id, &place))
		return ASK_KERNEL(id, ts);
	return read_clock(id, ts, place.latch, place.base);
}
#else
/* One page has no room for the straight code of two calls, each for two kinds of clock: this costs some nanoseconds. */
#define other_clock READ_SLOWLY
#endif

FP_INLINE int read_any_clock(fp_clockid id, FP_TIMESPEC *ts) {
	/* REALTIME is 0 and MONOTONIC 1, as clock ids and as bases. */
	if (fp_likely((unsigned)id <= FP_CLOCK_MONOTONIC))
		return read_clock(id, ts, fp_hres(), id);
	/* Directly to the kernel: these clocks are its fastest, and searching for them among the others would double
	 * their cost. */
	if (fp_likely(id == FP_CLOCK_REALTIME_COARSE || id == FP_CLOCK_MONOTONIC_COARSE))
		return ASK_KERNEL(id, ts);
	return other_clock(id, ts);
}
#endif
