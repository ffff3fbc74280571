/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The ordered read of the counter.
 *
 * A bare RDTSC may run ahead of an earlier load: a thread could then see another's write, and a time from before it.
 * LFENCE; RDTSC is right on every CPU under a 64-bit Linux, and is assembled here, for 32-bit programs too: they are
 * served where such a kernel runs, so SSE2, which includes LFENCE, always exists. Where the CPU has RDTSCP, which
 * waits for earlier loads by itself, an instance uses it instead (core/image patches it in; the kernel's vDSO does
 * the same), unless the CPU states that LFENCE waits for execution and that costs less (docs/design/reader.md). Both
 * take five bytes. The section, which is not loaded, lists their addresses.
 */
#ifndef FASTPATH_COUNTER_H
#define FASTPATH_COUNTER_H

#include "compiler.h"
#include "page.h"
#include "record.h"

FP_INLINE fp_u64 fp_read_counter(void) {
	unsigned long low, high; /* both instructions clear the upper 32 bits */

	/* RDTSCP writes ECX. */
	__asm__ volatile("1: lfence\n\t"
			 "rdtsc" FP_RECORD("counter_reads", "1b")
			 : "=a"(low), "=d"(high)
			 :
			 : "ecx", "memory");
	return (fp_u64)high << 32 | low;
}

/* The same in any order with other instructions: it may show a time from before an earlier load. */
FP_INLINE fp_u64 fp_read_counter_unordered(void) {
	unsigned long low, high;

	__asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
	return (fp_u64)high << 32 | low;
}

/*
 * Returns `at` for loads that should come after the read of the counter. They may come some cycles before it here,
 * since neither instruction holds later loads back, and the writer allows for that: no new anchor begins so soon
 * after the old one was cut short (core/page/src/writer/).
 */
FP_INLINE const void *fp_after_counter(const void *at, fp_u64 counter) {
	(void)counter;
	return at;
}

#endif
