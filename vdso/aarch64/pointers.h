/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The addresses of the two things that whoever maps the image decides on.
 *
 * ADRP reaches the page alone, 4 GiB to either side: page and image both lie at multiples of 4096. An instance for a
 * page elsewhere has another distance in it (crates/image/src/patch.rs).
 */
#ifndef FASTPATH_POINTERS_H
#define FASTPATH_POINTERS_H

#include "compiler.h"
#include "record.h"
#include "slots.h"

FP_INLINE const void *fp_page_at(unsigned offset) {
	const char *page;

	__asm__("1: adrp %0, fp_page" FP_RECORD("page_references", "1b") : "=r"(page));
	return page + offset;
}

FP_INLINE void *fp_slot_at(unsigned offset) {
	void *function;

	__asm__("ldr %0, fp_slots+%c1" : "=r"(function) : "i"(offset));
	return function;
}

/* By one instruction: the compiler would take two. */
#define FP_KERNEL(function) ((__typeof__(fp_slots.function))fp_slot_at(__builtin_offsetof(struct fp_slots, function)))

#endif
