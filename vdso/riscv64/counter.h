/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The ordered read of the counter: the time CSR (RDTIME).
 *
 * To the memory model, RVWMO, the read of a CSR is device input: it is not ordered with accesses to memory, except by
 * a fence or by a dependency (unprivileged specification, "CSR Access Ordering"). Ztso orders accesses to memory, and
 * not CSRs. The read needs two orders.
 *
 * It must not come before loads that the thread has already made, or it could show a time from before a write that
 * the thread has seen: FENCE R,I orders every earlier load, the caller's own included, before it.
 *
 * It must not come after the check that the anchor is still valid, or an anchor could be used beyond the base of the
 * next one: see fp_after_counter().
 */
#ifndef FASTPATH_COUNTER_H
#define FASTPATH_COUNTER_H

#include "compiler.h"
#include "page.h"
#include "record.h"

/* gcc's assembler takes RDTIME only with the extension's name in -march, which older versions, and clang, refuse. */
#ifdef __clang__
#define FP_RDTIME "rdtime %0"
#else
#define FP_RDTIME ".insn i 0x73, 2, %0, x0, -1023"
#endif

FP_INLINE fp_u64 fp_read_counter(void) {
	fp_u64 counter;

	__asm__ volatile("1: fence r, i\n\t" FP_RDTIME FP_RECORD("counter_reads", "1b") : "=r"(counter) : : "memory");
	return counter;
}

/*
 * Returns `at` for loads that must come after the read of the counter: their address depends on the counter, with a
 * difference of 0. The barrier before the recheck orders the recheck after them, and so after the counter.
 */
FP_INLINE const void *fp_after_counter(const void *at, fp_u64 counter) {
	fp_u64 nothing;

	__asm__("xor %0, %1, %1" : "=r"(nothing) : "r"(counter));
	return (const char *)at + nothing;
}

#endif
