/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "isa.h"
#include "slots.h"

#define FP_TIMESPEC struct fp_timespec
#define ASK_KERNEL fp_call_clock_gettime
#define READ_SLOWLY fp_read_slowly
#include "clock_gettime.h"

FP_HOT int FP_NAME(clock_gettime)(fp_clockid id, struct fp_timespec *ts) { return read_any_clock(id, ts); }
FP_ALIAS(clock_gettime)
