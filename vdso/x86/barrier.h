/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* x86 never reorders a load with another load (Intel SDM 3A, 9.2.2; AMD APM 2, 7.2): only the compiler must not. */
#ifndef FASTPATH_BARRIER_H
#define FASTPATH_BARRIER_H

#include "compiler.h"
#include "page.h"

/* Loads a word, before all later loads. volatile: the compiler must load it once, and not again where the value is
 * used. */
FP_INLINE fp_u32 fp_load_acquire(const fp_u32 *at) {
	fp_u32 value = *(const volatile fp_u32 *)at;

	fp_compiler_barrier();
	return value;
}

/* Orders earlier loads before later ones. */
FP_INLINE void fp_load_barrier(void) { fp_compiler_barrier(); }

#endif
