/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The ordered read of the counter.
 *
 * A bare RDTSC may run ahead of an earlier load: a thread could then see another's write, and a time from before it.
 * LFENCE; RDTSC is right on every x86-64 CPU under Linux, and what is assembled here. Where the CPU has it, RDTSCP,
 * which waits for earlier loads by itself, takes its place (crates/image patches it in; the kernel's vDSO does the
 * same): it needs no assumption about LFENCE, which on AMD waits for execution only if the kernel has set a bit in an
 * MSR. Both take five bytes. The section, which is not loaded, lists where they are.
 */
#ifndef FASTPATH_COUNTER_H
#define FASTPATH_COUNTER_H

#include "compiler.h"
#include "page.h"

FP_INLINE fp_u64 fp_read_counter(void) {
	fp_u64 low, high; /* both instructions clear the upper halves */

	/* RDTSCP writes ECX. */
	__asm__ volatile("1: lfence\n\t"
			 "rdtsc\n\t"
			 ".pushsection .fastpath.ordered_counter_reads, \"\", %%progbits\n\t"
			 ".quad 1b\n\t"
			 ".popsection"
			 : "=a"(low), "=d"(high)
			 :
			 : "ecx", "memory");
	return high << 32 | low;
}

#endif
