/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The address of the page, which an instance determines.
 *
 * The code reaches the page by its distance, in the last four bytes of an LEA. An instance for a page elsewhere has
 * other distances (core/image/src/instance.rs). The compiler does not see where the pointer comes from, so it keeps
 * it in a register and reaches the fields by short offsets: the hot path is a third shorter for it.
 */
#ifndef FASTPATH_POINTERS_H
#define FASTPATH_POINTERS_H

#include "compiler.h"
#include "page.h"
#include "record.h"

FP_INLINE const void *fp_page_at(unsigned offset) {
	const void *address;

	__asm__("lea fp_page+%c1(%%rip), %0\n1:" FP_RECORD("page_references", "1b - 4") : "=r"(address) : "i"(offset));
	return address;
}

/*
 * Whether the code was moved, and does not find its page any more. A program may move its vDSO, which may contain this
 * code, and unmap the page. Here the code compares the distance to the page with itself. An instance for one place
 * (core/image/src/instance.rs: `pin`) has the page's address in place of the second LEA and the no-op: a MOVABS.
 */
#define FP_KNOWS_ITS_PLACE 1
FP_INLINE int fp_is_moved(const void *hres) {
	const void *address;

	__asm__("lea fp_page+%c1(%%rip), %0\n1:\tnopl (%%rax)" FP_RECORD("page_references", "1b - 4")
		    FP_RECORD("page_addresses", "1b - 7")
		: "=r"(address)
		: "i"(__builtin_offsetof(struct fp_page, hres)));
	return hres != address;
}

#endif
