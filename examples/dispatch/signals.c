/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Signals: SIGSYS belongs to the host and is never blocked, since the kernel ends a process whose call traps while it
 * is. The guest's own action for it is kept here, for those that other processes send.
 */
#include "memory.h"
#include "trap.h"

#include <errno.h>
#include <sys/syscall.h>

enum { MASK_BYTES = 8 };

static struct kernel_action own_action;

static long read_mask(uint64_t *mask, uint64_t from) {
	const long error = read_guest(mask, from, MASK_BYTES);

	*mask &= ~SIGSYS_BIT;
	return error;
}

static long sigprocmask_without_sigsys(struct trap *trap) {
	uint64_t mask = 0, now = 0;
	long result;

	if (trap->arguments[1] && read_mask(&mask, trap->arguments[1]))
		return -EFAULT;
	/* The handler runs with the guest's mask: signals that are unblocked here may arrive here. */
	result = CALL_4(SYS_rt_sigprocmask, trap->arguments[0], trap->arguments[1] ? &mask : NULL, trap->arguments[2],
			MASK_BYTES);
	CALL_4(SYS_rt_sigprocmask, SIG_BLOCK, NULL, &now, MASK_BYTES);
	*(uint64_t *)&trap->context->uc_sigmask = now;
	return result;
}

static long sigaction_without_sigsys(const struct trap *trap) {
	struct kernel_action action;

	if (trap->arguments[1] && read_guest(&action, trap->arguments[1], sizeof(action)))
		return -EFAULT;
	action.mask &= ~SIGSYS_BIT;
	if (trap->arguments[0] != SIGSYS)
		return CALL_4(SYS_rt_sigaction, trap->arguments[0], trap->arguments[1] ? &action : NULL,
			      trap->arguments[2], MASK_BYTES);
	if (trap->arguments[2] && write_guest(trap->arguments[2], &own_action, sizeof(own_action)))
		return -EFAULT;
	if (trap->arguments[1])
		own_action = action;
	return 0;
}

/* A call whose argument of this index is a mask for as long as it waits. */
static long wait_without_sigsys(struct trap *trap, unsigned index) {
	uint64_t mask;

	if (read_mask(&mask, trap->arguments[index]))
		return -EFAULT;
	trap->arguments[index] = (uintptr_t)&mask;
	return make(trap);
}

/* The same, where the argument is the address of the mask's address and size. */
static long wait_without_sigsys_indirectly(struct trap *trap, unsigned index) {
	uint64_t mask, set[2];

	if (read_guest(set, trap->arguments[index], sizeof(set)))
		return -EFAULT;
	if (set[0] && read_mask(&mask, set[0]))
		return -EFAULT;
	if (set[0])
		set[0] = (uintptr_t)&mask;
	trap->arguments[index] = (uintptr_t)set;
	return make(trap);
}

/* Returns the index of the argument that is a mask, or -1. */
static int mask_argument(long number) {
	switch (number) {
	case SYS_rt_sigsuspend:
		return 0;
	case SYS_ppoll:
		return 3;
	case SYS_epoll_pwait:
	case 441: /* epoll_pwait2 */
		return 4;
	default:
		return -1;
	}
}

int treat_signals(struct trap *trap) {
	const int index = mask_argument(trap->number);

	if (index >= 0) {
		if (!trap->arguments[index])
			return 0;
		finish(trap, wait_without_sigsys(trap, (unsigned)index));
		return 1;
	}
	switch (trap->number) {
	case SYS_rt_sigprocmask:
		if (trap->arguments[3] != MASK_BYTES)
			return 0;
		finish(trap, sigprocmask_without_sigsys(trap));
		return 1;
	case SYS_rt_sigaction:
		if (trap->arguments[3] != MASK_BYTES)
			return 0;
		finish(trap, sigaction_without_sigsys(trap));
		return 1;
	case SYS_pselect6:
	case 333: /* io_pgetevents */
		if (!trap->arguments[5])
			return 0;
		finish(trap, wait_without_sigsys_indirectly(trap, 5));
		return 1;
	default:
		return 0;
	}
}

void pass_sigsys(int signal, siginfo_t *info, void *context) {
	struct kernel_action usual = {0};

	if (own_action.handler == (uint64_t)(uintptr_t)SIG_IGN)
		return;
	if (own_action.handler) {
		((void (*)(int, siginfo_t *, void *))own_action.handler)(signal, info, context);
		return;
	}
	/* The default: the process ends. */
	CALL_4(SYS_rt_sigaction, SIGSYS, &usual, NULL, MASK_BYTES);
	CALL_3(SYS_tgkill, CALL_1(SYS_getpid, 0), CALL_1(SYS_gettid, 0), SIGSYS);
}
