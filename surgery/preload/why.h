/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Why a process is not served, for FASTPATH_PRELOAD_VERBOSE=1. */
#ifndef FASTPATH_PRELOAD_WHY_H
#define FASTPATH_PRELOAD_WHY_H

#include <stdbool.h>

#include "fastpath-protocol.h"

struct why {
	const char *tried;             /* what was tried, or what is wrong */
	long error;                    /* the kernel's error: a negative errno, or 0 */
	char said[FASTPATHD_SENTENCE]; /* the daemon's answer, or nothing */
};

/* Stores the reason. Returns false, so that a function can end with it. */
static inline bool fp_because(struct why *why, const char *tried, long error) {
	why->tried = tried;
	why->error = error;
	return false;
}

/* Writes one line to standard error: `not served: TRIED: ...`. */
void fp_report(const char *outcome, const struct why *why);

#endif
