/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#ifndef FASTPATH_PRELOAD_EXECUTABLE_H
#define FASTPATH_PRELOAD_EXECUTABLE_H

/* Nothing to do: written memory can be executed at once by the thread that wrote it. */
static inline void fp_make_executable(const void *start, const void *end) {
	(void)start;
	(void)end;
}

#endif
