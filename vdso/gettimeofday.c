/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "isa.h"
#include "latch.h"
#include "slots.h"

FP_INLINE int answer(struct fp_timeval *tv, struct fp_time now) {
	tv->tv_sec = now.sec;
	tv->tv_usec = fp_to_usec(now.nsec);
	return 0;
}

/*
 * Reads by any anchor that answers, else returns the kernel's time, but nothing earlier than a reader was shown.
 * Only the kernel has the time zone: with `tz` it answers the whole call, so that both parts are of one moment.
 */
static FP_COLD int read_slow_path(struct fp_timeval *tv, struct fp_timezone *tz) {
	struct fp_time time;

	if (!fp_read_latch(FP_CLOCK_REALTIME, &time) || tz) {
		const int error = fp_call_gettimeofday(tv, tz);

		if (error || !tv || !fp_is_later(&time, tv->tv_sec, tv->tv_usec * 1000))
			return error;
	}
	return answer(tv, time);
}

int FP_NAME(gettimeofday)(struct fp_timeval *tv, struct fp_timezone *tz) {
#if __SIZEOF_POINTER__ == 8
	struct fp_time now;
#endif

	if (fp_unlikely(tz))
		return read_slow_path(tv, tz);
	if (fp_unlikely(!tv))
		return 0;
#if __SIZEOF_POINTER__ == 8
	if (fp_likely(fp_read_newest(fp_hres(), FP_CLOCK_REALTIME, FP_BASE_REALTIME, &now)))
		return answer(tv, now);
#endif
	/* On 32-bit ISAs, one page only has room for the straight code of clock_gettime and clock_gettime64. */
	return read_slow_path(tv, 0);
}
FP_ALIAS(gettimeofday)
