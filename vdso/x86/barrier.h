/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* x86 never reorders a load with another load (Intel SDM 3A, 9.2.2; AMD APM 2, 7.2): only the compiler has to be
 * stopped. */
#ifndef FASTPATH_BARRIER_H
#define FASTPATH_BARRIER_H

#include "compiler.h"
#include "page.h"

/* No later load comes before this one. volatile: the compiler must load it once, not again where the value is used. */
FP_INLINE fp_u32 fp_load_acquire(const fp_u32 *at) {
	fp_u32 value = *(const volatile fp_u32 *)at;

	fp_compiler_barrier();
	return value;
}

/* No later load comes before an earlier one. */
FP_INLINE void fp_load_barrier(void) { fp_compiler_barrier(); }

#endif
