/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The kernel's own vDSO functions in this process. core/image fills their addresses into slots before the image is
 * mapped; to the code they are constants. 0: the kernel has none. C code calls fp_call_FUNCTION, which makes the
 * system call (calls.S); where the slot is not 0, an instance replaces it by a jump to the slot's function.
 *
 * The order of the slots is in core/isa. isa.h has their number, FP_SLOT_COUNT, and the offset of each in bytes,
 * FP_SLOT_FUNCTION, for the assembler.
 */
#ifndef FASTPATH_SLOTS_H
#define FASTPATH_SLOTS_H

#include "compiler.h"
#include "isa.h"
#include "types.h"

extern FP_HIDDEN void *const fp_slots[FP_SLOT_COUNT];

FP_HIDDEN int fp_call_clock_gettime(fp_clockid id, struct fp_timespec *ts);
FP_HIDDEN int fp_call_gettimeofday(struct fp_timeval *tv, struct fp_timezone *tz);
FP_HIDDEN int fp_call_clock_getres(fp_clockid id, struct fp_timespec *resolution);
#if __SIZEOF_POINTER__ == 4
FP_HIDDEN int fp_call_clock_gettime64(fp_clockid id, struct fp_timespec64 *ts);
#endif

#endif
