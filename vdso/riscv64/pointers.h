/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The address of the page, which an instance determines.
 *
 * The code reaches the page by its distance: AUIPC adds the upper part, ADDI the lower. An instance for a page
 * elsewhere has another upper part (crates/isa/src/riscv64.rs); the lower stays, because pages are whole.
 */
#ifndef FASTPATH_POINTERS_H
#define FASTPATH_POINTERS_H

#include "compiler.h"
#include "record.h"

FP_INLINE const void *fp_page_at(unsigned offset) {
	const void *address;

	__asm__("1: auipc %0, %%pcrel_hi(fp_page+%c1)\n\t"
		"addi %0, %0, %%pcrel_lo(1b)" FP_RECORD("page_references", "1b")
		: "=r"(address)
		: "i"(offset));
	return address;
}

#endif
