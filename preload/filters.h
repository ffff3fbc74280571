/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Seccomp filters that are in force before the program has begun: a container's, a service manager's, a sandbox's. */
#ifndef FASTPATH_PRELOAD_FILTERS_H
#define FASTPATH_PRELOAD_FILTERS_H

#include "status.h"

/* What is to be done in this process, and first in one that may die of it. */
typedef bool fp_work(const void *with, struct why *why);

/*
 * Whether the filters that `status` speaks of let `work` be done: seen on a child that does it, and may die.
 *
 * A filter may answer a call with death, and nobody can read it. A child is the way to find out, but making one is a
 * call, too. So none is made unless somebody has made one under the same filters: this process's parent, if it has as
 * many (fork inherits them). Where the parent is outside this PID namespace, this is the first process of a container,
 * or one brought into it, and the filters are the runtime's for whatever runs there. Filters that a program has put on
 * itself before it became this one are more than its parent has, and are left alone.
 */
bool fp_filters_allow(const struct status *status, fp_work *work, const void *with, struct why *why);

#endif
