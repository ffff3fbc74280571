/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Restartable sequences. This process's libc has registered an area of its thread for them, and the kernel takes one a
 * thread: the program's libc would be refused.
 */
#ifndef LOADER_RSEQ_H
#define LOADER_RSEQ_H

void unregister_rseq(char **envp);

#endif
