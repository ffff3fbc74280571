/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Turns this process into the program. */
#ifndef LOADER_PROGRAM_H
#define LOADER_PROGRAM_H

#include "vdso.h"

/* Seals the image, closes the page's descriptor, and becomes the program of a command. Returns only if that fails,
 * after a message. */
void become_command(char **command, char **envp, int page_fd, const struct vdso *vdso);

#endif
