/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The number of the current CPU, from a register. */
#ifndef FASTPATH_CPU_H
#define FASTPATH_CPU_H

#include "compiler.h"
#include "types.h"

/*
 * Reads the CPU and its node. Returns whether they are known.
 *
 * Linux gives each CPU's GDT a segment whose only use is its limit, (node << 12) | cpu. The selector is GDT entry 15
 * at privilege level 3 (__CPUNODE_SEG in asm/segment.h), on 64-bit kernels, for 32-bit programs too. This is not an
 * ABI: hence the flag of the page, which is set only where the limit was seen to agree with getcpu(2).
 */
FP_INLINE int fp_read_cpu_node(fp_u32 page_flags, struct fp_cpu_node *here) {
	unsigned limit;

	if (!(page_flags & FP_PAGE_CPU_SEGMENT))
		return 0;
	/* volatile: the thread may have migrated since the last time. */
	__asm__ volatile("lsl %1, %0" : "=r"(limit) : "r"(0x7bu) : "cc");
	here->cpu = limit & 0xfff;
	here->node = limit >> 12;
	return 1;
}

/* Reads the counter and IA32_TSC_AUX of its CPU at once. */
FP_INLINE fp_u64 fp_read_counter_and_aux(fp_u32 *aux) {
	unsigned long low, high;

	__asm__ volatile("rdtscp" : "=a"(low), "=d"(high), "=c"(*aux) : : "memory");
	return (fp_u64)high << 32 | low;
}

#endif
