/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Restartable sequences. This process's libc has registered an area for its thread, and the kernel accepts one per
 * thread, so the program's libc could not register its own.
 */
#ifndef LOADER_RSEQ_H
#define LOADER_RSEQ_H

void unregister_rseq(char **envp);

#endif
