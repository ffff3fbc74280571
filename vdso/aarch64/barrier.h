/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * DMB ISHLD (Arm ARM, B2.3): every load before it, in program order, comes before every access to memory after it.
 * Unlike a load-acquire, it also holds for the caller's own loads from before the call: counter.h needs that.
 */
#ifndef FASTPATH_BARRIER_H
#define FASTPATH_BARRIER_H

#include "compiler.h"
#include "page.h"

/* No later load comes before an earlier one. */
FP_INLINE void fp_load_barrier(void) { __asm__ volatile("dmb ishld" ::: "memory"); }

/* No later load comes before this one. */
FP_INLINE fp_u32 fp_load_acquire(const fp_u32 *at) {
	fp_u32 value = *(const volatile fp_u32 *)at;

	fp_load_barrier();
	return value;
}

#endif
