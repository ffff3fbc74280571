/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The calls that change an answer. */
#include "inherited.h"
#include "memory.h"
#include "trap.h"

#include <errno.h>
#include <limits.h>
#include <linux/prctl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#ifndef SYS_close_range
#define SYS_close_range 436
#endif
enum { CLOSE_RANGE_UNSHARE_FLAG = 2, MADV_GUARD_INSTALL_ADVICE = 102 /* Linux 6.13 */ };

static const unsigned char change_of[] = {
    [SYS_setuid] = CREDENTIALS,
    [SYS_setgid] = CREDENTIALS,
    [SYS_setreuid] = CREDENTIALS,
    [SYS_setregid] = CREDENTIALS,
    [SYS_setresuid] = CREDENTIALS,
    [SYS_setresgid] = CREDENTIALS,
    [SYS_setfsuid] = CREDENTIALS,
    [SYS_setfsgid] = CREDENTIALS,
    [SYS_setpgid] = GROUP,
    [SYS_setsid] = GROUP,
    [SYS_close] = DESCRIPTORS,
    [SYS_dup2] = DESCRIPTORS,
    [SYS_dup3] = DESCRIPTORS,
    [SYS_close_range] = DESCRIPTORS,
    [SYS_open] = NEW_DESCRIPTOR,
    [SYS_openat] = NEW_DESCRIPTOR,
    [437] = NEW_DESCRIPTOR,    /* openat2 */
    [425] = SHARE_DESCRIPTORS, /* io_uring_setup: its requests can close descriptors */
    [SYS_mmap] = MEMORY,
    [SYS_munmap] = MEMORY,
    [SYS_mremap] = MEMORY,
    [SYS_mprotect] = MEMORY,
    [SYS_pkey_mprotect] = MEMORY,
    [SYS_madvise] = MEMORY,
    [SYS_brk] = MEMORY,
    [SYS_shmat] = MEMORY,
    [SYS_shmdt] = MEMORY,
    [SYS_remap_file_pages] = MEMORY,
    [SYS_prctl] = PARENT,
    [SYS_unshare] = NAMESPACES,
    [SYS_setns] = NAMESPACES,
};

/* Returns what a call changes. */
static struct changing changed_by(const struct trap *trap) {
	const uint64_t *of = trap->arguments;
	const unsigned known = sizeof(change_of);
	struct changing changing = {.change = trap->number >= 0 && trap->number < known ? change_of[trap->number] : 0};

	switch (trap->number) {
	case SYS_close:
		changing.first = changing.last = (unsigned)of[0];
		break;
	case SYS_dup2:
	case SYS_dup3:
		changing.first = changing.last = (unsigned)of[1];
		break;
	case SYS_close_range:
		if (of[2] & CLOSE_RANGE_UNSHARE_FLAG)
			changing.change = SHARE_DESCRIPTORS;
		changing.first = (unsigned)of[0];
		changing.last = (unsigned)of[1];
		break;
	case SYS_setfsuid:
	case SYS_setfsgid:
		/* No id: it asks for the present one. */
		if ((int)of[0] == -1)
			changing.change = NO_CHANGE;
		break;
	case SYS_prctl:
		if ((int)of[0] != PR_SET_PDEATHSIG)
			changing.change = NO_CHANGE;
		break;
	case SYS_mmap:
		if (!(of[3] & MAP_FIXED))
			changing.change = NO_CHANGE;
		break;
	case SYS_madvise:
		if (of[2] != MADV_GUARD_INSTALL_ADVICE)
			changing.change = NO_CHANGE;
		break;
	default:
		break;
	}
	return changing;
}

/* close_range, but for the host's descriptors. */
static long close_range_but_inherited(const struct trap *trap) {
	const unsigned own[] = {(unsigned)inherited.page, (unsigned)inherited.host, (unsigned)inherited.log};
	const unsigned last = (unsigned)trap->arguments[1];
	unsigned first = (unsigned)trap->arguments[0];
	long result = first > last ? -EINVAL : 0;

	while (result == 0 && first <= last) {
		unsigned end = last;

		if (is_inherited(first)) {
			first++;
			continue;
		}
		for (unsigned i = 0; i < 3; i++)
			if (own[i] > first && own[i] <= end)
				end = own[i] - 1;
		result = CALL_3(SYS_close_range, first, end, trap->arguments[2]);
		if (end == UINT_MAX)
			break;
		first = end + 1;
	}
	return result;
}

static long make_change(const struct trap *trap) {
	switch (trap->number) {
	case SYS_close:
		return is_inherited((unsigned)trap->arguments[0]) ? -EBADF : make(trap);
	case SYS_dup2:
	case SYS_dup3:
		return is_inherited((unsigned)trap->arguments[1]) ? -EBADF : make(trap);
	case SYS_close_range:
		return close_range_but_inherited(trap);
	default:
		return make(trap);
	}
}

/* A thread that unmaps its own stack, as musl's do at their end, has no memory for a handler any more. From here on,
 * the host does not see its calls. */
static int unmaps_own_stack(const struct trap *trap) {
	const uint64_t stack = (uint64_t)trap->registers[REG_RSP];

	return trap->number == SYS_munmap && stack - trap->arguments[0] < trap->arguments[1];
}

static void part_with_thread(const struct trap *trap) {
	const uint64_t mask = enter();
	const uint64_t stub = stub_for((uint64_t)trap->registers[REG_RIP], NOT_CLONED);

	leave(mask);
	if (!stub) {
		finish(trap, -ENOMEM);
		return;
	}
	answers_end();
	trap->registers[REG_RIP] = (greg_t)stub;
	dispatch(0);
}

int treat_changes(struct trap *trap) {
	const struct changing changing = changed_by(trap);
	long result;

	if (changing.change == NO_CHANGE)
		return 0;
	if (unmaps_own_stack(trap)) {
		part_with_thread(trap);
		return 1;
	}
	name_own_program(trap);
	answers_before(&changing);
	result = make_change(trap);
	answers_after(&changing, result);
	finish(trap, result);
	return 1;
}
