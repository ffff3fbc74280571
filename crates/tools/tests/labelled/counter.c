/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* A program that reads the CPU's counter: AS_CLOCK scales it to nanoseconds; otherwise its low half is a seed. */
#include <stdio.h>

static unsigned long long read_counter(void) {
#ifdef __x86_64__
	unsigned int low, high;

	__asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
	return (unsigned long long)high << 32 | low;
#else
	unsigned long long value;

	__asm__ volatile("mrs %0, cntvct_el0" : "=r"(value));
	return value;
#endif
}

static volatile unsigned long long per_tick = 1ULL << 31, start;

int main(void) {
#ifdef AS_CLOCK
	return printf("%llu\n", (unsigned long long)((unsigned __int128)(read_counter() - start) * per_tick >> 32)) < 0;
#else
	return printf("%u\n", (unsigned int)read_counter() % 6) < 0;
#endif
}
