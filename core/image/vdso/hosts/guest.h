/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The pages of answers.h, and the guest's memory. */
#ifndef FASTPATH_GUEST_H
#define FASTPATH_GUEST_H

#include "answers.h"
#include "compiler.h"
#include "pointers.h"

FP_INLINE const struct fp_answers *fp_answers(void) {
	return (const void *)((const char *)fp_page_at(0) - FP_PAGE_SIZE);
}

FP_INLINE struct fp_ring *fp_ring(void) { return (void *)((const char *)fp_page_at(0) - 2 * FP_PAGE_SIZE); }

FP_INLINE fp_u64 fp_load(const fp_u64 *at) { return __atomic_load_n(at, __ATOMIC_RELAXED); }

/* Memory of the guest that a call writes a result to: at most one page long. */
struct fp_buffer {
	unsigned long at;
	unsigned long size;
};

/*
 * Takes random bytes from the ring, each of which is handed out once, and writes them to a buffer that is writable.
 * Returns 0 if the ring has too few, and cannot be filled: without `may_fill`, or if another thread uses it.
 */
FP_INTERNAL int fp_take_random(struct fp_buffer buffer, int may_fill);

#endif
