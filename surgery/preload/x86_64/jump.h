/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#ifndef FASTPATH_PRELOAD_JUMP_H
#define FASTPATH_PRELOAD_JUMP_H

#include <stdint.h>

/* Returns the target of the `jmp rel32` that a function begins with, or 0. */
static inline uintptr_t fp_jump_target(const unsigned char *code) {
	if (code[0] != 0xe9)
		return 0;
	uint32_t distance = code[1] | code[2] << 8 | code[3] << 16 | (uint32_t)code[4] << 24;

	return (uintptr_t)code + 5 + (uintptr_t)(intptr_t)(int32_t)distance;
}

#endif
