/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Waiting for a lock, and releasing it. */
#ifndef FASTPATH_OWN_H
#define FASTPATH_OWN_H

#include "page.h"

FP_INLINE void fp_pause(void) { __asm__ volatile("pause"); }

/*
 * Replaces a word that only this thread may change, if it is still `from`; a release. Without a lock prefix: the
 * instruction is not interrupted by a signal of this thread, and other threads' locked instructions leave the word as
 * it is, or wait for the new one. Half the cost of one.
 */
FP_INLINE int fp_replace_own(fp_u64 *at, fp_u64 from, fp_u64 to) {
	unsigned char is_replaced;

	__asm__ volatile("cmpxchg %3, %1" : "=@ccz"(is_replaced), "+m"(*at), "+a"(from) : "r"(to) : "memory");
	return is_replaced;
}

#endif
