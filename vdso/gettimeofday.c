/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "latch.h"
#include "names.h"
#include "slots.h"

FP_INLINE int ask_kernel(struct fp_timeval *tv, struct fp_timezone *tz) { return fp_call_gettimeofday(tv, tz); }

FP_INLINE int answer(struct fp_timeval *tv, struct fp_time now) {
	tv->tv_sec = now.sec;
	/* Divided by 1000, exact for all 32 bits, and nsec has 30: 274877907 is 2^38 / 1000, rounded up. */
	tv->tv_usec = (fp_u64)now.nsec * 274877907u >> 38;
	return 0;
}

static FP_COLD int read_patiently(struct fp_timeval *tv) {
	struct fp_time now;

	if (fp_read_patiently(FP_CLOCK_REALTIME, &now) != FP_ANSWERED)
		return ask_kernel(tv, 0);
	return answer(tv, now);
}

int FP_NAME(gettimeofday)(struct fp_timeval *tv, struct fp_timezone *tz) {
#if __SIZEOF_POINTER__ == 8
	struct fp_time now;
#endif

	/* The time zone is the kernel's: it answers the whole call, so that both halves are of one moment. */
	if (fp_unlikely(tz))
		return ask_kernel(tv, tz);
	if (fp_unlikely(!tv))
		return 0;
#if __SIZEOF_POINTER__ == 8
	switch (fp_read_newest(fp_hres(), FP_CLOCK_REALTIME, FP_BASE_REALTIME, &now)) {
	case FP_ANSWERED:
		return answer(tv, now);
	case FP_TRY_LATCH:
		break;
	default:
		return ask_kernel(tv, 0);
	}
#endif
	/* One page has room for the straight code of clock_gettime and clock_gettime64, on ISAs that have both. */
	return read_patiently(tv);
}
FP_ALIAS(gettimeofday)
