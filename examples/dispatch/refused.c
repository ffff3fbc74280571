/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Calls after which the page would be wrong for the guest, or the host could not make its own any more. */
#include "memory.h"
#include "trap.h"

#include <errno.h>
#include <linux/prctl.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x80
#endif

/* Returns whether a descriptor is a time namespace, by what its link says. */
static int is_time_namespace(unsigned descriptor) {
	char path[LINK_BYTES], link[64];
	const long length = CALL_3(SYS_readlink, put_link(path, descriptor), link, sizeof(link));

	return length > 5 && memcmp(link, "time:", 5) == 0;
}

static long refusal(const struct trap *trap) {
	const uint64_t *of = trap->arguments;
	uint64_t flags = 0;

	switch (trap->number) {
	case SYS_prctl:
		if (of[0] == PR_SET_TSC)
			return -EPERM;
		/* As on a kernel without them. */
		return of[0] == PR_SET_SECCOMP || of[0] == GATE_DISPATCH ? -EINVAL : 0;
	case SYS_seccomp:
		return -ENOSYS;
	case SYS_unshare:
		return of[0] & CLONE_NEWTIME ? -EPERM : 0;
	case SYS_clone3:
		return read_guest(&flags, of[0], sizeof(flags)) == 0 && flags & CLONE_NEWTIME ? -EPERM : 0;
	case SYS_setns:
		return of[1] & CLONE_NEWTIME || is_time_namespace((unsigned)of[0]) ? -EPERM : 0;
	default:
		return 0;
	}
}

int treat_refused(struct trap *trap) {
	const long error = refusal(trap);

	if (error)
		finish(trap, error);
	return error != 0;
}
