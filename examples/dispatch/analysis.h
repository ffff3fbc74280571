/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Finds the sites of a mapped file that can be led to the image. The analysis allocates, so it is made in a child
 * process, which the guest does not see: its end sends no signal, and wait(2) without __WCLONE does not find it.
 */
#ifndef DISPATCH_ANALYSIS_H
#define DISPATCH_ANALYSIS_H

#include <fastpath.h>
#include <stdint.h>

enum { MOST_PATCHES = 256, THUNK_ROOM = 64 };

struct analysis {
	/* Whether the memory is a file's. */
	int is_file;
	unsigned count;
	/* Where their thunks go. */
	uint64_t thunks;
	uint64_t thunk_bytes;
	/* Patches of one instruction, that which loads the number: a thread is before it or behind it. */
	struct fastpath_patch patches[MOST_PATCHES];
};

/* To be called before the guest starts. */
void analysis_start(void);

/* Returns what is found for the file whose memory has this address, or NULL. Called with signals blocked. */
const struct analysis *analyse_file_at(uint64_t address);
void analysis_free(const struct analysis *analysis);

#endif
