/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* x86-64 and i386: the bare instructions from which the vDSO's functions are made. */
#ifndef BENCH_CPU_H
#define BENCH_CPU_H

#include <cpuid.h>
#include <stdint.h>

#define VDSO_PREFIX "__vdso_"

/* Reads the counter as the image does: RDTSCP if the CPU has it, else LFENCE; RDTSC. */
static inline int counter_is_rdtscp(void) {
	static int known = -1;
	unsigned a, b, c, d;

	if (known < 0)
		known = __get_cpuid(0x80000001, &a, &b, &c, &d) && d >> 27 & 1;
	return known;
}

static inline uint64_t read_counter(void) {
	uint32_t low, high;

	if (counter_is_rdtscp())
		__asm__ volatile("rdtscp" : "=a"(low), "=d"(high) : : "ecx", "memory");
	else
		__asm__ volatile("lfence\n\trdtsc" : "=a"(low), "=d"(high) : : "memory");
	return (uint64_t)high << 32 | low;
}

/* A loop without the test of the CPU. */
static inline void repeat_counter(unsigned calls) {
	uint32_t low, high;

	if (counter_is_rdtscp())
		while (calls--)
			__asm__ volatile("rdtscp" : "=a"(low), "=d"(high) : : "ecx", "memory");
	else
		while (calls--)
			__asm__ volatile("lfence\n\trdtsc" : "=a"(low), "=d"(high) : : "memory");
}

/* The CPU's own instruction for getcpu: it reads the limit of the per-CPU segment. */
#define HAS_CPU_NODE 1
static inline void repeat_cpu_node(unsigned calls) {
	unsigned limit;

	while (calls--)
		__asm__ volatile("lsl %1, %0" : "=r"(limit) : "r"(0x7bu) : "cc", "memory");
}

#endif
