/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "filters.h"

#include <sys/resource.h>
#include <sys/wait.h>

#include "calls.h"

/* linux/sched.h: the parent waits until the child is gone. */
#define FP_CLONE_VFORK 0x4000

/* The child's results, in memory shared with its parent: the parent may not be allowed to wait for the child. */
struct findings {
	bool may_wait;
	bool may_work;
	struct why why;
};

static bool others_fork_under_them(const struct status *status, struct why *why) {
	struct status parent;

	if (status->filters < 0)
		return fp_because(why, "under a seccomp filter this needs Linux 5.9", 0);
	if (status->parent == 0)
		return true;
	if (!fp_status_of(status->parent, &parent, why))
		return false;
	if (parent.filters != status->filters)
		return fp_because(
		    why, "it has a seccomp filter that its parent does not have, and a trial might kill it", 0);
	return true;
}

static long wait_for(long child) { return fp_syscall4(FP_NR_wait4, child, 0, __WALL, 0); }

_Noreturn static void try_and_exit(volatile struct findings *findings, fp_work *work, const void *with) {
	/* A filter kills with a core dump. A limit of 1 prevents the file, and the handler of core dumps too
	 * (core(5)). */
	const uint64_t no_core[2] = {1, 1};

	fp_syscall4(FP_NR_prlimit64, 0, RLIMIT_CORE, (long)no_core, 0);
	findings->may_wait = wait_for(-1) == -ECHILD;
	findings->may_work = work(with, (struct why *)&findings->why);
	for (;;)
		fp_syscall4(FP_NR_exit_group, 0, 0, 0, 0);
}

bool fp_filters_allow(const struct status *status, fp_work *work, const void *with, struct why *why) {
	bool may_wait, may_work;

	if (!others_fork_under_them(status, why))
		return false;
	long page = fp_map(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (fp_failed(page))
		return fp_because(why, "no memory", page);
	volatile struct findings *findings = (void *)page;
	/* Without a signal at its end, and with memory of its own: a core dump once killed all processes that shared
	 * the memory. */
	long child = fp_syscall6(FP_NR_clone, FP_CLONE_VFORK, 0, 0, 0, 0, 0);
	if (child == 0)
		try_and_exit(findings, work, with);
	may_wait = findings->may_wait;
	may_work = findings->may_work;
	/* A child that was killed has said nothing. */
	fp_because(why, "a seccomp filter is in force, and a trial under it failed", 0);
	if (findings->why.tried)
		*why = *(const struct why *)&findings->why;
	fp_unmap((uintptr_t)page, 4096);
	if (fp_failed(child))
		return fp_because(why, "a seccomp filter is in force, and what it allows cannot be tried out", child);
	if (may_wait)
		wait_for(child);
	return may_work;
}
