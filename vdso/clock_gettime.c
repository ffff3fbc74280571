/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "latch.h"
#include "names.h"
#include "slots.h"
#include "syscall.h"

static FP_COLD int ask_kernel(fp_clockid id, struct fp_timespec *ts) {
	if (fp_slots.clock_gettime)
		return fp_slots.clock_gettime(id, ts);
	return fp_syscall2(FP_SYS_clock_gettime, id, (long)ts);
}

FP_INLINE int answer(struct fp_timespec *ts, struct fp_time now) {
	ts->tv_sec = now.sec;
	ts->tv_nsec = now.nsec;
	return 0;
}

static FP_COLD int read_latch(fp_clockid id, struct fp_timespec *ts, const struct fp_latch *latch, unsigned base) {
	struct fp_time now;

	if (fp_read_latch(latch, id, base, &now) != FP_ANSWERED)
		return ask_kernel(id, ts);
	return answer(ts, now);
}

FP_INLINE int read_clock(fp_clockid id, struct fp_timespec *ts, const struct fp_latch *latch, unsigned base) {
	struct fp_time now;

	switch (fp_read_newest(latch, id, base, &now)) {
	case FP_ANSWERED:
		return answer(ts, now);
	case FP_TRY_LATCH:
		return read_latch(id, ts, latch, base);
	default:
		return ask_kernel(id, ts);
	}
}

/* The clocks whose base shares no cache line with the rate: one line more, or another latch. */
static __attribute__((noinline)) int other_clock(fp_clockid id, struct fp_timespec *ts) {
	const struct fp_latch *latch = &fp_page.hres;
	unsigned base;

	if (id == FP_CLOCK_BOOTTIME) {
		base = FP_BASE_BOOTTIME;
	} else if (id == FP_CLOCK_MONOTONIC_RAW) {
		latch = &fp_page.raw;
		base = 0;
	} else if (id == FP_CLOCK_TAI) {
		base = FP_BASE_TAI;
	} else {
		return ask_kernel(id, ts);
	}
	return read_clock(id, ts, latch, base);
}

FP_HOT int FP_NAME(clock_gettime)(fp_clockid id, struct fp_timespec *ts) {
	/* REALTIME is 0 and MONOTONIC 1, as clock ids and as bases. */
	if (fp_likely((unsigned)id <= FP_CLOCK_MONOTONIC))
		return read_clock(id, ts, &fp_page.hres, id);
	return other_clock(id, ts);
}
FP_ALIAS(clock_gettime)
