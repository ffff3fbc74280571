/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The address of the page, which whoever maps the image decides on.
 *
 * Instructions cannot be asked for their own address here: a call to fp_here (here.S) tells it, as compilers do it, but
 * without the GOT that they would count from, which is data to be written. The page is reached as on x86-64.
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
