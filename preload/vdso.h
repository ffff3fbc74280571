/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The vDSO that this process was given. */
#ifndef FASTPATH_PRELOAD_VDSO_H
#define FASTPATH_PRELOAD_VDSO_H

#include <stdint.h>

#include "why.h"

struct vdso {
	uintptr_t base;
	uintptr_t end; /* of what the file says of itself, up to the end of a page */
};

#define FP_PAGE_UP(bytes) (((bytes) + 4095) & ~(uintptr_t)4095)

/* False if there is none, if it is not this library's kind, or if it is fastpath's own already. */
bool fp_vdso(uintptr_t base, struct vdso *vdso, struct why *why);

#endif
