/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The addresses of the image, the page and the rest of a redirection in this process. */
#ifndef FASTPATH_PRELOAD_REGION_H
#define FASTPATH_PRELOAD_REGION_H

#include "conversation.h"
#include "vdso.h"

/* Reserves FASTPATHD_REGION_ROOM bytes within a jump of the vDSO. Returns their address, or 0. */
uintptr_t fp_reserve_region(const struct vdso *vdso, struct why *why);

/* Fills them by the plan, and unmaps the rest. On failure the caller must still give up the region. */
bool fp_fill_region(uintptr_t region, const struct prepared *prepared, struct why *why);

/* Returns the address of the page in a region with these sections, or 0. */
uintptr_t fp_page_in(uintptr_t region, const struct fastpathd_answer *answer);

void fp_give_up_region(uintptr_t region);

#endif
