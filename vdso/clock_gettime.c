/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "names.h"
#include "slots.h"
#include "syscall.h"

#define FP_TIMESPEC struct fp_timespec
#include "clock_gettime.h"

static FP_COLD int ask_kernel(fp_clockid id, struct fp_timespec *ts) {
	if (fp_slots_here()->clock_gettime)
		return fp_slots_here()->clock_gettime(id, ts);
	return fp_syscall2(FP_SYS_clock_gettime, id, (long)ts);
}

FP_HOT int FP_NAME(clock_gettime)(fp_clockid id, struct fp_timespec *ts) { return read_any_clock(id, ts); }
FP_ALIAS(clock_gettime)
