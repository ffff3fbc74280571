/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The kernel's types and numbers that the exported functions speak in. */
#ifndef FASTPATH_TYPES_H
#define FASTPATH_TYPES_H

#include "page.h"

typedef int fp_clockid;

struct fp_timespec {
	long tv_sec;
	long tv_nsec;
};

struct fp_timeval {
	long tv_sec;
	long tv_usec;
};

struct fp_timezone;

enum {
	FP_CLOCK_REALTIME = 0,
	FP_CLOCK_MONOTONIC = 1,
	FP_CLOCK_MONOTONIC_RAW = 4,
	FP_CLOCK_REALTIME_COARSE = 5,
	FP_CLOCK_MONOTONIC_COARSE = 6,
	FP_CLOCK_BOOTTIME = 7,
	FP_CLOCK_TAI = 11,
};

#define FP_NSEC_PER_SEC 1000000000u

#endif
