/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The contents of /proc/PID/status. */
#ifndef FASTPATH_PRELOAD_STATUS_H
#define FASTPATH_PRELOAD_STATUS_H

#include <stdbool.h>

#include "why.h"

struct status {
	long threads;
	long parent;  /* 0: outside this PID namespace */
	long seccomp; /* mode: 0 none, 1 strict, 2 filters; none on a kernel without */
	long filters; /* how many; -1: not reported by a kernel before 5.9 */
};

/* Makes only system calls that the loader makes too (open, read, close), so a seccomp filter allows them. */
bool fp_own_status(struct status *status, struct why *why);
bool fp_status_of(long pid, struct status *status, struct why *why);

#endif
