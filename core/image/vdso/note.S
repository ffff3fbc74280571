/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The notes; the linker adds the build id. */
#include "isa.h"
#include "note.h"

	.macro note name, type, words:vararg
	.balign 4
	.long 2f - 1f, 4f - 3f, \type
1:	.asciz "\name"
2:	.balign 4
3:	.long \words
4:	.balign 4
	.endm

	.section .note.fastpath, "a", %note
	/* NT_GNU_ABI_TAG: Linux, 2.6.32 or later. Debuggers determine the ABI by it. */
	note GNU, 1, 0, 2, 6, 32
	/* Ours: the version of the page that the code reads. fastpath recognizes its own image by it. */
	note fastpath, 1, FP_PAGE_ABI

#ifdef FP_PROPERTY
	/* NT_GNU_PROPERTY_TYPE_0, by a name of ours: linkers drop theirs if an object has none. Loaders require this alignment. */
	.section .note.property, "a", %note
	.balign 8
	.long 4, 16, 5
	.asciz "GNU"
	.long FP_PROPERTY, 4, FP_FEATURES, 0
#endif

	.section .note.GNU-stack, "", %progbits
