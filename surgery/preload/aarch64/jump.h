/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#ifndef FASTPATH_PRELOAD_JUMP_H
#define FASTPATH_PRELOAD_JUMP_H

#include <stdint.h>

/* Returns the target of the `b` that a function begins with, or 0. A landing pad may come first: BTI c, BTI jc,
 * PACIASP, PACIBSP. */
static inline uintptr_t fp_jump_target(const unsigned char *code) {
	const uint32_t *word = (const void *)code;

	if (*word == 0xd503245f || *word == 0xd50324df || *word == 0xd503233f || *word == 0xd503237f)
		word++;
	if ((*word & 0xfc000000) != 0x14000000)
		return 0;
	/* 26 bits of words. */
	return (uintptr_t)word + (uintptr_t)((intptr_t)(int32_t)(*word << 6) >> 4);
}

#endif
