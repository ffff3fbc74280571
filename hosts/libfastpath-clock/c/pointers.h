/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* In place of core/image/vdso/ISA/pointers.h: the address of the page is in a variable, which never is NULL. */
#ifndef FASTPATH_POINTERS_H
#define FASTPATH_POINTERS_H

#include "compiler.h"
#include "page.h"

/* An empty page, for which the kernel answers, until fastpath_clock_open() has found one. It is never unmapped. */
extern FP_HIDDEN const struct fp_page *fp_clock_page;

/* What is loaded from the page depends on the pointer, and so comes after it on these ISAs. */
FP_INLINE const void *fp_page_at(unsigned offset) {
	return (const char *)__atomic_load_n(&fp_clock_page, __ATOMIC_RELAXED) + offset;
}

#endif
