/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The vDSO that this process was started with. */
#ifndef FASTPATH_PRELOAD_VDSO_H
#define FASTPATH_PRELOAD_VDSO_H

#include <stdint.h>

#include "why.h"

struct vdso {
	uintptr_t base;
	uintptr_t end; /* end of the file by its headers, rounded up to a page of the kernel's */
};

/* Returns false if there is none at `base`, if it is for another ISA, if it is fastpath's own, or redirected to that.
 */
bool fp_vdso(uintptr_t base, uintptr_t page_size, struct vdso *vdso, struct why *why);

#endif
