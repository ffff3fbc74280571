/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The image and its page, in the process that is about to become the program. */
#ifndef LOADER_VDSO_H
#define LOADER_VDSO_H

#include <fastpath.h>
#include <stdint.h>

struct vdso {
	const fastpath_image *image;
	unsigned char *address; /* of the image's first byte; the page lies below */
};

/*
 * Maps the page that `page_fd` holds, read-only, and an instance of this host's image above it, which is still
 * writable. 0, or -1 after a message.
 */
int map_vdso(int page_fd, uint32_t instance_flags, struct vdso *vdso);

/* From here on the image can be executed and no longer written. 0, or -1 after a message. */
int seal_vdso(const struct vdso *vdso);

/* The address of a function of the image; 0: it has none of that name. */
uintptr_t vdso_symbol(const struct vdso *vdso, const char *name);

#endif
