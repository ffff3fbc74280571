/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Barriers between loads. The instruction and its reason are in core/isa. */
#ifndef FASTPATH_BARRIER_H
#define FASTPATH_BARRIER_H

#include "compiler.h"
#include "isa.h"
#include "page.h"

/* Orders earlier loads before later ones. */
FP_INLINE void fp_load_barrier(void) { __asm__ volatile(FP_LOAD_BARRIER ::: "memory"); }

/* Loads a word, before all later loads. volatile: the compiler must load it once, and not again where the value is
 * used. */
FP_INLINE fp_u32 fp_load_acquire(const fp_u32 *at) {
	fp_u32 value = *(const volatile fp_u32 *)at;

	fp_load_barrier();
	return value;
}

#endif
