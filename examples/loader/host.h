/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Runs a program on the synthetic vDSO, from its start to its end. */
#ifndef LOADER_HOST_H
#define LOADER_HOST_H

#include "vdso.h"

/* Exit statuses as of env(1) and nohup(1). */
enum { EXIT_LOADER_FAILED = 125, EXIT_CANNOT_RUN = 126 };

/* Called in the program's process with its image, which is still writable; any result but 0 ends the process. */
typedef int prepare_fn(const struct vdso *vdso);

/*
 * Returns the program's exit status, or ends this process by the signal that ended the program. `verbose` reports the
 * publisher's state on stderr; `prepare` may be NULL.
 */
int host_program(char **command, char **envp, int verbose, prepare_fn *prepare);

#endif
