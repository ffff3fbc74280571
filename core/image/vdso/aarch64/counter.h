/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The ordered read of the counter.
 *
 * CNTVCT_EL0 may be read speculatively, and out of order with loads. The read needs two orders.
 *
 * It must not come before loads that the thread has already made, or it could show a time from before a write that
 * the thread has seen. The chain, for a load L of the caller's: L is before the load of `clocks`, by the barrier in
 * fp_load_acquire(); whether the read is reached depends on `clocks`, by a branch; and what follows an ISB in
 * program order is not executed before such a branch is resolved (Arm ARM, B2.3: a control dependency and a context
 * synchronization event; D11.2 has this very sequence, for reading the counter after a flag was seen in memory). For
 * `seq` itself the chain is the same. Code that does not load `clocks` before the read breaks the proof.
 *
 * It must not come after the check that the anchor is still valid, or an anchor could be used beyond the base of the
 * next one: see fp_after_counter().
 *
 * Where the CPU has FEAT_ECV, an instance reads CNTVCTSS_EL0 instead, with a no-op in place of the ISB: it is not
 * read speculatively, so the branch suffices.
 */
#ifndef FASTPATH_COUNTER_H
#define FASTPATH_COUNTER_H

#include "compiler.h"
#include "page.h"
#include "record.h"

FP_INLINE fp_u64 fp_read_counter(void) {
	fp_u64 counter;

	__asm__ volatile("1: isb\n\t"
			 "mrs %0, cntvct_el0" FP_RECORD("counter_reads", "1b")
			 : "=r"(counter)
			 :
			 : "memory");
	return counter;
}

/* The same in any order with earlier instructions: it may show a time from before an earlier load. */
FP_INLINE fp_u64 fp_read_counter_unordered(void) {
	fp_u64 counter;

	__asm__ volatile("mrs %0, cntvct_el0" : "=r"(counter));
	return counter;
}

/*
 * Returns `at` for loads that must come after the read of the counter: their address depends on the counter, with a
 * difference of 0. The barrier before the recheck orders the recheck after them, and so after the counter.
 */
FP_INLINE const void *fp_after_counter(const void *at, fp_u64 counter) {
	fp_u64 nothing;

	__asm__("eor %0, %1, %1" : "=r"(nothing) : "r"(counter));
	return (const char *)at + nothing;
}

#endif
