/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The address of the page, which an instance determines.
 *
 * The code reaches the page by its distance, which MOVW and MOVT load in two halves. An instance for a page
 * elsewhere has other halves (core/image/src/instance.rs). The program counter reads as two instructions further on.
 */
#ifndef FASTPATH_POINTERS_H
#define FASTPATH_POINTERS_H

#include "compiler.h"
#include "record.h"

FP_INLINE const void *fp_page_at(unsigned offset) {
	const char *page;

	__asm__("1: movw %0, #:lower16:(fp_page - (2f + 8))\n\t"
		"movt %0, #:upper16:(fp_page - (2f + 8))\n"
		"2: add %0, pc, %0" FP_RECORD("page_references", "1b")
		: "=r"(page));
	return page + offset;
}

#endif
