/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The image and its page, in the process that will become the program. */
#ifndef LOADER_VDSO_H
#define LOADER_VDSO_H

#include <fastpath.h>
#include <stdint.h>

struct vdso {
	const fastpath_image *image;
	unsigned char *address; /* of the image's first byte; the page lies below */
};

/*
 * Maps the page of `page_fd` read-only, and above it an instance of this host's image, which is still writable. Returns
 * 0, or -1 after a message.
 */
int map_vdso(int page_fd, uint32_t instance_flags, struct vdso *vdso);

/* Makes the image executable and read-only. Returns 0, or -1 after a message. */
int seal_vdso(const struct vdso *vdso);

/* Returns the address of a function of the image, or 0 if it has none of that name. */
uintptr_t vdso_symbol(const struct vdso *vdso, const char *name);

#endif
