/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* RISC-V: the bare instructions from which the vDSO's functions are made. */
#ifndef BENCH_CPU_H
#define BENCH_CPU_H

#include <stdint.h>

#define VDSO_PREFIX "__vdso_"

static inline uint64_t read_counter(void) {
	uint64_t count;

	__asm__ volatile("fence r, i\n\trdtime %0" : "=r"(count) : : "memory");
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
