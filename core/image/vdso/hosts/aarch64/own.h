/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Waiting for a lock, and releasing it. */
#ifndef FASTPATH_OWN_H
#define FASTPATH_OWN_H

#include "page.h"

FP_INLINE void fp_pause(void) { __asm__ volatile("yield"); }

/* Replaces a word that only this thread may change, if it is still `from`; a release. */
FP_INLINE int fp_replace_own(fp_u64 *at, fp_u64 from, fp_u64 to) {
	return __atomic_compare_exchange_n(at, &from, to, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
}

#endif
