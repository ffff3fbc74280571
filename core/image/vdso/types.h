/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The kernel's types and numbers that the exported functions use. */
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

#if __SIZEOF_POINTER__ == 4
/* struct __kernel_timespec, of clock_gettime64. The one above belongs to the older call, which ends in 2038. */
struct fp_timespec64 {
	long long tv_sec;
	long long tv_nsec;
};
#endif

struct fp_cpu_node {
	unsigned cpu;
	unsigned node;
};

/* page.h has the others. */
enum { FP_CLOCK_REALTIME_COARSE = 5, FP_CLOCK_MONOTONIC_COARSE = 6 };

enum { FP_ENOSYS = 38 };

#define FP_NSEC_PER_SEC 1000000000u

#endif
