/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Which CPU this is, from a register. Meaningful only where the page says FP_PAGE_CPU_SEGMENT. */
#ifndef FASTPATH_CPU_H
#define FASTPATH_CPU_H

#include "compiler.h"

struct fp_cpu_node {
	unsigned cpu;
	unsigned node;
};

/*
 * Linux gives each CPU's GDT a segment whose only use is its limit, (node << 12) | cpu. The selector is GDT entry 15 at
 * privilege level 3 (__CPUNODE_SEG in asm/segment.h). That is no promise to user space: hence the flag, which is set
 * only where the limit was seen to agree with getcpu(2).
 */
FP_INLINE struct fp_cpu_node fp_read_cpu_node(void) {
	unsigned limit;

	/* volatile: the thread may have moved since the last time. */
	__asm__ volatile("lsl %1, %0" : "=r"(limit) : "r"(0x7bu) : "cc");
	return (struct fp_cpu_node){.cpu = limit & 0xfff, .node = limit >> 12};
}

#endif
