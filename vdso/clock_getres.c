/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "latch.h"
#include "names.h"
#include "slots.h"
#include "syscall.h"

#define BIT(id) (1u << (id))

static const fp_u32 hres_clocks = BIT(FP_CLOCK_REALTIME) | BIT(FP_CLOCK_MONOTONIC) | BIT(FP_CLOCK_MONOTONIC_RAW) |
				  BIT(FP_CLOCK_BOOTTIME) | BIT(FP_CLOCK_TAI);
static const fp_u32 coarse_clocks = BIT(FP_CLOCK_REALTIME_COARSE) | BIT(FP_CLOCK_MONOTONIC_COARSE);

FP_INLINE int is_one_of(fp_clockid id, fp_u32 clocks) { return (unsigned)id < 32 && clocks >> id & 1; }

FP_INLINE int answer(struct fp_timespec *resolution, fp_u32 ns) {
	if (fp_likely(resolution)) {
		resolution->tv_sec = 0;
		resolution->tv_nsec = ns;
	}
	return 0;
}

/* Without an answer on the page too, which says 0 then. */
FP_APART int other_clock(fp_clockid id, struct fp_timespec *resolution) {
	if (is_one_of(id, coarse_clocks)) {
		const fp_u32 ns = fp_header()->coarse_res_ns;

		if (ns)
			return answer(resolution, ns);
	}
	if (fp_slots_here()->clock_getres)
		return fp_slots_here()->clock_getres(id, resolution);
	return fp_syscall2(FP_SYS_clock_getres, id, (long)resolution);
}

int FP_NAME(clock_getres)(fp_clockid id, struct fp_timespec *resolution) {
	if (fp_likely(is_one_of(id, hres_clocks))) {
		const fp_u32 ns = fp_header()->hres_res_ns;

		if (fp_likely(ns))
			return answer(resolution, ns);
	}
	return other_clock(id, resolution);
}
FP_ALIAS(clock_getres)
