/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Runs a program on the synthetic vDSO, from its start to its end. */
#ifndef LOADER_HOST_H
#define LOADER_HOST_H

#include <stdint.h>

/* Exit statuses as of env(1) and nohup(1). */
enum { EXIT_LOADER_FAILED = 125, EXIT_CANNOT_RUN = 126 };

/*
 * Turns this process into the program. `page_fd` is the page, open for reading, and `flags` are those for an instance
 * of the image. Returns only if that fails, after a message.
 */
typedef void become_fn(char **command, char **envp, int page_fd, uint32_t flags);

/*
 * Returns the program's exit status, or ends this process by the signal that ended the program. `become` is called in a
 * child. `verbose` reports the publisher's state on stderr.
 */
int host_program(become_fn *become, char **command, char **envp, int verbose);

#endif
