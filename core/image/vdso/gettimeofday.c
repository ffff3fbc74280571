/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "isa.h"
#include "latch.h"
#include "slots.h"

/*
 * The exceptional cases are those of clock_gettime. Only the kernel has the time zone; the time that it returns with it
 * is replaced, because a reader may have been shown a later one.
 */
FP_APART int read_slow_path(struct fp_timeval *tv, struct fp_timezone *tz) {
	struct fp_timespec now;
	int error = 0;

	if (tz)
		error = fp_call_gettimeofday(tv, tz);
	if (error || !tv)
		return error;
	error = fp_read_slowly(FP_CLOCK_REALTIME, &now);
	if (!error) {
		tv->tv_sec = now.tv_sec;
		tv->tv_usec = fp_to_usec(now.tv_nsec);
	}
	return error;
}

FP_HOT int FP_NAME(gettimeofday)(struct fp_timeval *tv, struct fp_timezone *tz) {
	/* On 32-bit ISAs, one page only has room for the straight code of clock_gettime and clock_gettime64. */
#if __SIZEOF_POINTER__ == 8
	const struct fp_latch *hres = fp_hres();
	struct fp_time now;

	if (fp_unlikely(fp_is_moved(hres)))
		return fp_call_gettimeofday(tv, tz);
	if (fp_unlikely(tz))
		return read_slow_path(tv, tz);
	if (fp_unlikely(!tv))
		return 0;
	if (fp_likely(fp_read_newest(hres, FP_CLOCK_REALTIME, FP_BASE_REALTIME, FP_ORDERED, &now))) {
		tv->tv_sec = now.sec;
		tv->tv_usec = fp_to_usec(now.nsec);
		return 0;
	}
#endif
	return read_slow_path(tv, tz);
}
FP_ALIAS(gettimeofday)
