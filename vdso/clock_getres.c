/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "latch.h"
#include "names.h"
#include "slots.h"
#include "syscall.h"

#define BIT(id) (1u << (id))

static const fp_u32 hres_clocks = BIT(FP_CLOCK_REALTIME) | BIT(FP_CLOCK_MONOTONIC) | BIT(FP_CLOCK_MONOTONIC_RAW) |
				  BIT(FP_CLOCK_BOOTTIME) | BIT(FP_CLOCK_TAI);
static const fp_u32 coarse_clocks = BIT(FP_CLOCK_REALTIME_COARSE) | BIT(FP_CLOCK_MONOTONIC_COARSE);

/* 0: the page does not know. */
FP_INLINE fp_u32 resolution_ns(fp_clockid id) {
	if ((unsigned)id >= 32)
		return 0;
	if (hres_clocks & BIT(id))
		return fp_page.header.hres_res_ns;
	if (coarse_clocks & BIT(id))
		return fp_page.header.coarse_res_ns;
	return 0;
}

int FP_NAME(clock_getres)(fp_clockid id, struct fp_timespec *resolution) {
	fp_u32 ns = resolution_ns(id);

	if (fp_likely(ns)) {
		if (resolution) {
			resolution->tv_sec = 0;
			resolution->tv_nsec = ns;
		}
		return 0;
	}
	if (fp_slots.clock_getres)
		return fp_slots.clock_getres(id, resolution);
	return fp_syscall2(FP_SYS_clock_getres, id, (long)resolution);
}
FP_ALIAS(clock_getres)
