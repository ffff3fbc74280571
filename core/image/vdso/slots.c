/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "slots.h"

/* In a separate file: no function may see the zeros and fold them. */
/* Aligned for its words only: the compiler would leave a gap, for which one page has no room. */
__attribute__((aligned(__SIZEOF_POINTER__))) void *const fp_slots[FP_SLOT_COUNT];
