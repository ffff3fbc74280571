/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The ordered read of the counter: CNTVCT, through coprocessor 15.
 *
 * The orders and their proof are as on AArch64 (aarch64/counter.h): after earlier loads by the barrier in
 * fp_load_acquire(), the branch on `clocks` and the ISB; before the recheck by an address that depends on the
 * counter, and the barrier before the recheck.
 */
#ifndef FASTPATH_COUNTER_H
#define FASTPATH_COUNTER_H

#include "compiler.h"
#include "page.h"
#include "record.h"

FP_INLINE fp_u64 fp_read_counter(void) {
	fp_u64 counter;

	__asm__ volatile("1: isb\n\t"
			 "mrrc p15, 1, %Q0, %R0, c14" FP_RECORD("counter_reads", "1b")
			 : "=r"(counter)
			 :
			 : "memory");
	return counter;
}

/* The same in any order with earlier instructions: it may show a time from before an earlier load. */
FP_INLINE fp_u64 fp_read_counter_unordered(void) {
	fp_u64 counter;

	__asm__ volatile("mrrc p15, 1, %Q0, %R0, c14" : "=r"(counter));
	return counter;
}

/* Returns `at` for loads that must come after the read of the counter. */
FP_INLINE const void *fp_after_counter(const void *at, fp_u64 counter) {
	fp_u32 nothing;

	__asm__("eor %0, %Q1, %Q1" : "=r"(nothing) : "r"(counter));
	return (const char *)at + nothing;
}

#endif
