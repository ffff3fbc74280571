/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Turns this process into the program. */
#ifndef LOADER_PROGRAM_H
#define LOADER_PROGRAM_H

#include "vdso.h"

/* Returns only if the program cannot be loaded, after a message. */
void become_program(char **argv, char **envp, const struct vdso *vdso);

#endif
