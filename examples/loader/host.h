/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Running a program on the synthetic vDSO, from its start to its end. */
#ifndef LOADER_HOST_H
#define LOADER_HOST_H

#include "vdso.h"

/* As env(1) and nohup(1) have it. */
enum { EXIT_LOADER_FAILED = 125, EXIT_CANNOT_RUN = 126 };

/* Called in the program's process with its image, which is still writable; anything but 0 ends it. */
typedef int prepare_fn(const struct vdso *vdso);

/*
 * Returns the program's exit status, and ends this process by the signal that ended the program. `verbose` says on
 * stderr what the publisher did; `prepare` may be NULL.
 */
int host_program(char **command, char **envp, int verbose, prepare_fn *prepare);

#endif
