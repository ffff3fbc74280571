/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Leading the entry points of the kernel's vDSO to the region. */
#ifndef FASTPATH_PRELOAD_PATCHES_H
#define FASTPATH_PRELOAD_PATCHES_H

#include "conversation.h"
#include "vdso.h"

struct patches {
	/* A vDSO exports ten functions at most. */
	struct fastpathd_patch patch[32];
	uint32_t count;
};

/* Reads them from the plan. False unless every one of them belongs in this vDSO, and what it replaces stands there. */
bool fp_read_patches(const struct prepared *prepared, const struct vdso *vdso, struct patches *patches,
		     struct why *why);

/* All of them, or none. */
bool fp_apply_patches(const struct patches *patches, const struct vdso *vdso, struct why *why);

#endif
