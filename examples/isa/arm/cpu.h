/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Arm: the bare instructions from which the vDSO's functions are made. */
#ifndef BENCH_CPU_H
#define BENCH_CPU_H

#include <stdint.h>

#define VDSO_PREFIX "__vdso_"

static inline uint64_t read_counter(void) {
	uint32_t low, high;

	__asm__ volatile("isb\n\tmrrc p15, 1, %0, %1, c14" : "=r"(low), "=r"(high) : : "memory");
	return (uint64_t)high << 32 | low;
}

static inline void repeat_counter(unsigned calls) {
	while (calls--)
		read_counter();
}

/* User space cannot read the number of its CPU. */
#define HAS_CPU_NODE 0
static inline void repeat_cpu_node(unsigned calls) { (void)calls; }

#endif
