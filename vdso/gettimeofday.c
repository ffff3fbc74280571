/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "latch.h"
#include "names.h"
#include "slots.h"
#include "syscall.h"

static FP_COLD int ask_kernel(struct fp_timeval *tv, struct fp_timezone *tz) {
	if (fp_slots.gettimeofday)
		return fp_slots.gettimeofday(tv, tz);
	return fp_syscall2(FP_SYS_gettimeofday, (long)tv, (long)tz);
}

FP_INLINE int answer(struct fp_timeval *tv, struct fp_time now) {
	tv->tv_sec = now.sec;
	/* Divided by 1000, exact for all 32 bits: 274877907 is 2^38 / 1000, rounded up. */
	tv->tv_usec = (fp_u64)(fp_u32)now.nsec * 274877907u >> 38;
	return 0;
}

static FP_COLD int read_latch(struct fp_timeval *tv) {
	struct fp_time now;

	if (fp_read_latch(&fp_page.hres, FP_CLOCK_REALTIME, FP_BASE_REALTIME, &now) != FP_ANSWERED)
		return ask_kernel(tv, 0);
	return answer(tv, now);
}

int FP_NAME(gettimeofday)(struct fp_timeval *tv, struct fp_timezone *tz) {
	struct fp_time now;

	/* The time zone is the kernel's: it answers the whole call, so that both halves are of one moment. */
	if (fp_unlikely(tz))
		return ask_kernel(tv, tz);
	if (fp_unlikely(!tv))
		return 0;
	switch (fp_read_newest(&fp_page.hres, FP_CLOCK_REALTIME, FP_BASE_REALTIME, &now)) {
	case FP_ANSWERED:
		return answer(tv, now);
	case FP_TRY_LATCH:
		return read_latch(tv);
	default:
		return ask_kernel(tv, tz);
	}
}
FP_ALIAS(gettimeofday)
