/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The addresses of the two things that whoever maps the image decides on.
 *
 * Instructions cannot be asked for their own address here: a call to fp_here (here.S) tells it, as compilers do it, but
 * without the GOT that they would count from, which is data to be written. The page is reached as on x86-64.
 */
#ifndef FASTPATH_POINTERS_H
#define FASTPATH_POINTERS_H

#include "compiler.h"
#include "record.h"
#include "slots.h"

FP_INLINE const void *fp_page_at(unsigned offset) {
	const void *address;

	__asm__("call fp_here\n"
		"1: lea fp_page+%c1-1b(%0), %0\n2:" FP_RECORD("page_references", "2b - 4")
		: "=a"(address)
		: "i"(offset));
	return address;
}

/* A jump reaches every address here, so an instance has jumps in place of pointers to jump by (forward.S). */
FP_HIDDEN int fp_kernel_clock_gettime(fp_clockid id, struct fp_timespec *ts);
FP_HIDDEN int fp_kernel_clock_gettime64(fp_clockid id, struct fp_timespec64 *ts);
FP_HIDDEN int fp_kernel_gettimeofday(struct fp_timeval *tv, struct fp_timezone *tz);
FP_HIDDEN int fp_kernel_clock_getres(fp_clockid id, struct fp_timespec *resolution);

#define FP_KERNEL(function) fp_kernel_##function

#endif
