/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What has to be found again in the finished image: where it reads the counter, where it refers to the page, where it
 * makes system calls. Each place leaves its address in a section that is not loaded; crates/image/build reads it and
 * takes it out.
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
