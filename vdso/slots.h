/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The kernel's own vDSO functions in this process. crates/image fills them in before the image is mapped; to the
 * code they are constants. 0: the kernel has none. C code calls fp_call_FUNCTION, which makes the system call
 * (calls.S); where the slot is not 0, an instance replaces it by a jump to the slot's function.
 */
#ifndef FASTPATH_SLOTS_H
#define FASTPATH_SLOTS_H

/* The slots that the assembler uses; slots.c asserts their values. */
#define FP_SLOT_GETRANDOM 5
#define FP_SLOT_SGX_ENTER_ENCLAVE 6
#define FP_SLOT_CLOCK_GETRES_TIME64 8

#ifndef __ASSEMBLER__

#include "compiler.h"
#include "types.h"

struct fp_slots {
	int (*clock_gettime)(fp_clockid id, struct fp_timespec *ts);
	int (*gettimeofday)(struct fp_timeval *tv, struct fp_timezone *tz);
	long (*time)(long *seconds);
	int (*clock_getres)(fp_clockid id, struct fp_timespec *resolution);
	long (*getcpu)(unsigned *cpu, unsigned *node, void *unused);
	void (*getrandom)(void);         /* only ever jumped to */
	void (*sgx_enter_enclave)(void); /* only ever jumped to */
#if __SIZEOF_POINTER__ == 4
	int (*clock_gettime64)(fp_clockid id, struct fp_timespec64 *ts);
	void (*clock_getres_time64)(void); /* only ever jumped to */
#endif
};

FP_HIDDEN int fp_call_clock_gettime(fp_clockid id, struct fp_timespec *ts);
FP_HIDDEN int fp_call_gettimeofday(struct fp_timeval *tv, struct fp_timezone *tz);
FP_HIDDEN int fp_call_clock_getres(fp_clockid id, struct fp_timespec *resolution);
#if __SIZEOF_POINTER__ == 4
FP_HIDDEN int fp_call_clock_gettime64(fp_clockid id, struct fp_timespec64 *ts);
#endif

#endif
#endif
