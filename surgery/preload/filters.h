/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Seccomp filters that are in force before the program has begun: a container's, a service manager's, a sandbox's. */
#ifndef FASTPATH_PRELOAD_FILTERS_H
#define FASTPATH_PRELOAD_FILTERS_H

#include "status.h"

/* Work for this process, done first in a child that may be killed by it. */
typedef bool fp_work(const void *with, struct why *why);

/*
 * Returns whether the filters in `status` allow `work`, by a child that does it, and may be killed.
 *
 * A filter may kill for a call, and cannot be read. A child can test it, but forking is a call, too. So a child is
 * only forked if another process has forked under the same filters: this process's parent, if it has as many (fork
 * inherits them). Where the parent is outside this PID namespace, this is the first process of a container, or one
 * moved into it, and the container runtime set the filters for all of its processes. A program that has installed
 * filters on itself before it executed this one has more than its parent, and is left alone.
 */
bool fp_filters_allow(const struct status *status, fp_work *work, const void *with, struct why *why);

#endif
