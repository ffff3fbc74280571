/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#ifndef FASTPATH_PRELOAD_EXECUTABLE_H
#define FASTPATH_PRELOAD_EXECUTABLE_H

/* Arm Architecture Reference Manual, B2.4.4: cleans what was written as data to the point from which instructions
 * are fetched, and invalidates the instruction cache. CTR_EL0 holds the sizes of the cache lines, as logarithms of
 * words. */
static inline void fp_make_executable(const void *start, const void *end) {
	unsigned long type, from = (unsigned long)start, to = (unsigned long)end;

	__asm__ volatile("mrs %0, ctr_el0" : "=r"(type));
	unsigned long data = 4ul << (type >> 16 & 15), instructions = 4ul << (type & 15);
	for (unsigned long line = from & -data; line < to; line += data)
		__asm__ volatile("dc cvau, %0" ::"r"(line) : "memory");
	__asm__ volatile("dsb ish" ::: "memory");
	for (unsigned long line = from & -instructions; line < to; line += instructions)
		__asm__ volatile("ic ivau, %0" ::"r"(line) : "memory");
	__asm__ volatile("dsb ish\n\tisb" ::: "memory");
}

#endif
