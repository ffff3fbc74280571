/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The address of the page, which an instance determines.
 *
 * ADRP alone reaches the page, 4 GiB to either side: page and image both are at multiples of 4096. An instance for a
 * page elsewhere has another distance in it (core/image/src/instance.rs).
 */
#ifndef FASTPATH_POINTERS_H
#define FASTPATH_POINTERS_H

#include "compiler.h"
#include "record.h"

FP_INLINE const void *fp_page_at(unsigned offset) {
	const char *page;

	__asm__("1: adrp %0, fp_page" FP_RECORD("page_references", "1b") : "=r"(page));
	return page + offset;
}

#endif
