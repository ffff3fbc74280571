/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* What /proc/PID/status says of a process. */
#ifndef FASTPATH_PRELOAD_STATUS_H
#define FASTPATH_PRELOAD_STATUS_H

#include <stdbool.h>

#include "why.h"

struct status {
	long threads;
	long parent;  /* 0: outside this PID namespace */
	long seccomp; /* mode: 0 none, 1 strict, 2 filters; none on a kernel without */
	long filters; /* how many; -1: a kernel before 5.9 does not tell */
};

/* The calls that this takes are the loader's own: to open, to read, to close. So a seccomp filter cannot mind. */
bool fp_own_status(struct status *status, struct why *why);
bool fp_status_of(long pid, struct status *status, struct why *why);

#endif
