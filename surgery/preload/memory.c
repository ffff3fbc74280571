/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Compilers call these for structures, in freestanding code too. Private to this library. */
#include <stddef.h>

/* Keeps the compiler from replacing such a loop by a call of memcpy. */
#define NO_IDIOM __asm__ volatile("")

void *memcpy(void *restrict to, const void *restrict from, size_t size) {
	unsigned char *t = to;
	const unsigned char *f = from;

	while (size--) {
		NO_IDIOM;
		*t++ = *f++;
	}
	return to;
}

void *memset(void *to, int byte, size_t size) {
	unsigned char *t = to;

	while (size--) {
		NO_IDIOM;
		*t++ = (unsigned char)byte;
	}
	return to;
}
