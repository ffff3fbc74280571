/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "slots.h"

/* In a separate file: no function may see the zeros and fold them. */
/* Aligned for its words only: the compiler would leave a gap, for which one page has no room. */
extern FP_HIDDEN const struct fp_slots fp_slots;
__attribute__((aligned(__SIZEOF_POINTER__))) const struct fp_slots fp_slots;

#define SLOT(member) (__builtin_offsetof(struct fp_slots, member) / sizeof(void *))

_Static_assert(SLOT(getrandom) == FP_SLOT_GETRANDOM, "forward.S jumps to another slot");
_Static_assert(SLOT(sgx_enter_enclave) == FP_SLOT_SGX_ENTER_ENCLAVE, "forward.S jumps to another slot");
#if __SIZEOF_POINTER__ == 4
_Static_assert(SLOT(clock_getres_time64) == FP_SLOT_CLOCK_GETRES_TIME64, "forward.S jumps to another slot");
#endif
