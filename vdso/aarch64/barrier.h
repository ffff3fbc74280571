/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * DMB ISHLD (Arm ARM, B2.3): orders every load before it, in program order, before every access to memory after it.
 * Unlike a load-acquire, it also orders the caller's own loads from before the call: counter.h needs that.
 */
#ifndef FASTPATH_BARRIER_H
#define FASTPATH_BARRIER_H

#include "compiler.h"
#include "page.h"

/* Orders earlier loads before later ones. */
FP_INLINE void fp_load_barrier(void) { __asm__ volatile("dmb ishld" ::: "memory"); }

/* Loads a word, before all later loads. */
FP_INLINE fp_u32 fp_load_acquire(const fp_u32 *at) {
	fp_u32 value = *(const volatile fp_u32 *)at;

	fp_load_barrier();
	return value;
}

#endif
