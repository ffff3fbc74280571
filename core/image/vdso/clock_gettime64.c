/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* For 32-bit ISAs: the call whose seconds do not end in 2038. */
#include "isa.h"
#include "slots.h"
#include "syscall.h"

#define FP_TIMESPEC struct fp_timespec64
#define ASK_KERNEL fp_call_clock_gettime64
#define READ_SLOWLY read_slowly64
static int read_slowly64(fp_clockid id, struct fp_timespec64 *ts);
#include "clock_gettime.h"

/* Linux before 5.1, whose clocks are before 2038, only has the call with 32 bits. */
FP_INLINE int ask_old_kernel(fp_clockid id, struct fp_timespec64 *ts) {
	struct fp_timespec narrow;
	struct fp_timespec *out = ts ? &narrow : 0; /* without a destination, the kernel also has the answer */
	int error;

	error = fp_call_clock_gettime(id, out);
	if (!error && ts) {
		ts->tv_sec = narrow.tv_sec;
		ts->tv_nsec = narrow.tv_nsec;
	}
	return error;
}

FP_HIDDEN FP_COLD int fp_call_clock_gettime64(fp_clockid id, struct fp_timespec64 *ts) {
	const int error = fp_syscall2(FP_NR_clock_gettime64, id, (long)ts);

	return error == -FP_ENOSYS ? ask_old_kernel(id, ts) : error;
}

FP_HOT int FP_NAME(clock_gettime64)(fp_clockid id, struct fp_timespec64 *ts) { return read_any_clock(id, ts); }
