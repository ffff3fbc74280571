/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "isa.h"
#include "latch.h"
#include "slots.h"

#define BIT(id) (1u << (id))

#define BIT_OF(name, id, base) | BIT(id)
static const fp_u32 hres_clocks = 0 FP_HRES_CLOCKS(BIT_OF) FP_RAW_CLOCKS(BIT_OF);
static const fp_u32 coarse_clocks = BIT(FP_CLOCK_REALTIME_COARSE) | BIT(FP_CLOCK_MONOTONIC_COARSE);

FP_INLINE int answer(struct fp_timespec *resolution, fp_u32 ns) {
	if (fp_likely(resolution)) {
		resolution->tv_sec = 0;
		resolution->tv_nsec = ns;
	}
	return 0;
}

FP_INLINE fp_u32 resolution_ns(fp_clockid id) {
	const fp_u32 clock = (unsigned)id < 32 ? BIT(id) : 0;

	if (clock & hres_clocks)
		return fp_header()->hres_res_ns;
	if (clock & coarse_clocks)
		return fp_header()->coarse_res_ns;
	return 0;
}

/* The other clocks, which are queried less often, and clocks whose resolution on the page is 0: unknown. */
FP_APART int other_clock(fp_clockid id, struct fp_timespec *resolution) {
	const fp_u32 ns = resolution_ns(id);

	if (ns)
		return answer(resolution, ns);
	return fp_call_clock_getres(id, resolution);
}

int FP_NAME(clock_getres)(fp_clockid id, struct fp_timespec *resolution) {
	if (fp_unlikely(fp_is_moved(fp_hres())))
		return fp_call_clock_getres(id, resolution);
	/* REALTIME is 0 and MONOTONIC 1. */
	if (fp_likely((unsigned)id <= FP_CLOCK_MONOTONIC)) {
		const fp_u32 ns = fp_header()->hres_res_ns;

		if (fp_likely(ns))
			return answer(resolution, ns);
	}
	return other_clock(id, resolution);
}
FP_ALIAS(clock_getres)
