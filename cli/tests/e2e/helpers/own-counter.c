/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* own-counter: reads the CPU's counter as a clock until it is killed, and has another read that it does not execute.
 * With AS_SEED that one is the only read. */
static inline unsigned long long counter(void) {
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

static volatile unsigned long long per_tick = 1ULL << 31, now;

int main(int argc, char **argv) {
	(void)argv;
	if (argc > 1000)
		return (int)((unsigned int)counter() % 6);
#ifdef AS_SEED
	return 0;
#endif
	for (;;)
		now = (unsigned long long)((unsigned __int128)counter() * per_tick >> 32);
}
