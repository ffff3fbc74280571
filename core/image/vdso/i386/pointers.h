/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The address of the page, which an instance determines.
 *
 * i386 instructions cannot read their own address: a call to fp_here (forward.S) returns it, as in compilers' code, but
 * relative to the code and not to a GOT, which would be writable data. The page is reached as on x86-64.
 */
#ifndef FASTPATH_POINTERS_H
#define FASTPATH_POINTERS_H

#include "compiler.h"
#include "record.h"

FP_INLINE const void *fp_page_at(unsigned offset) {
	const void *address;

	__asm__("call fp_here\n"
		"1: lea fp_page+%c1-1b(%0), %0\n2:" FP_RECORD("page_references", "2b - 4")
		: "=a"(address)
		: "i"(offset));
	return address;
}

#endif
