/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* DMB (Arm ARM for ARMv7-A, A3.8): orders every access before it, in program order, before every one after it. */
#ifndef FASTPATH_BARRIER_H
#define FASTPATH_BARRIER_H

#include "compiler.h"
#include "page.h"

/* Orders earlier loads before later ones. ARMv7 has no barrier for loads alone. */
FP_INLINE void fp_load_barrier(void) { __asm__ volatile("dmb ish" ::: "memory"); }

/* Loads a word, before all later loads. */
FP_INLINE fp_u32 fp_load_acquire(const fp_u32 *at) {
	fp_u32 value = *(const volatile fp_u32 *)at;

	fp_load_barrier();
	return value;
}

#endif
