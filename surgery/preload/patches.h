/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Redirects the entry points of the kernel's vDSO to the region. */
#ifndef FASTPATH_PRELOAD_PATCHES_H
#define FASTPATH_PRELOAD_PATCHES_H

#include "conversation.h"
#include "vdso.h"

struct patches {
	/* clock_gettime's jump, and gettimeofday's, or the code in its place and the call frames. */
	struct fastpathd_patch patch[4];
	uint32_t count;
};

/* Reads the patches from the plan. Returns false unless each of them lies in this vDSO, and the bytes that it
 * replaces are there. */
bool fp_read_patches(const struct prepared *prepared, const struct vdso *vdso, struct patches *patches,
		     struct why *why);

/* Applies all patches, or none. */
bool fp_apply_patches(const struct patches *patches, const struct vdso *vdso, struct why *why);

/* Returns whether a patch is applied: `fastpath detach` reverts it. */
bool fp_is_applied(const struct fastpathd_patch *patch);

#endif
