/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Where the image, the page and what else a redirection takes lie in this process. */
#ifndef FASTPATH_PRELOAD_REGION_H
#define FASTPATH_PRELOAD_REGION_H

#include "conversation.h"
#include "vdso.h"

/* Keeps FASTPATHD_REGION_ROOM bytes free within a jump of the vDSO. Returns their address, or 0. */
uintptr_t fp_reserve_region(const struct vdso *vdso, struct why *why);

/* Fills them as the plan says, and gives back what it leaves over. On failure the room is still to be given up. */
bool fp_fill_region(uintptr_t region, const struct prepared *prepared, struct why *why);

void fp_give_up_region(uintptr_t region);

#endif
