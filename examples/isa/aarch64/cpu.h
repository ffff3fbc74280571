/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* AArch64: the bare instructions from which the vDSO's functions are made. */
#ifndef BENCH_CPU_H
#define BENCH_CPU_H

#include <stdint.h>

#define VDSO_PREFIX "__kernel_"

static inline uint64_t read_counter(void) {
	uint64_t count;

	__asm__ volatile("isb\n\tmrs %0, cntvct_el0" : "=r"(count) : : "memory");
	return count;
}

static inline void repeat_counter(unsigned calls) {
	while (calls--)
		read_counter();
}

/* User space cannot read the number of its CPU. */
#define HAS_CPU_NODE 0
static inline void repeat_cpu_node(unsigned calls) { (void)calls; }

#endif
