/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Records places in the image: where it reads the counter, refers to the page, and makes system calls. Each place
 * leaves its address in a section that is not loaded; core/image/build reads and removes it.
 */
#ifndef FASTPATH_RECORD_H
#define FASTPATH_RECORD_H

#if __SIZEOF_POINTER__ == 8
#define FP_WORD ".quad"
#else
#define FP_WORD ".long"
#endif

/* Part of an assembler template. */
#define FP_RECORD(section, place)                                                                                      \
	"\n\t.pushsection .fastpath." section ", \"\", %%progbits\n\t" FP_WORD " " place "\n\t.popsection\n\t"

#endif
