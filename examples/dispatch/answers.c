/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "answers.h"
#include "gate.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>

enum { MARK_WORDS = FASTPATH_ANSWERS_DESCRIPTORS / 64, TURNS_BETWEEN_CHECKS = 1000 };

static struct {
	/* Id of the thread that has the lock, or 0. */
	uint32_t owner;
	/* Whether a second thread has ever been made. */
	int has_threads;
	/* Whether another process may use this memory for as long as both run. */
	int shares_memory;
	/* Number of children that use this memory until they execute or end. */
	int lent;
	/* Whether descriptors may be marked: the table is this process's alone. */
	int owns_descriptors;
	/* Whether the parent cannot change the group any more: this process has executed. */
	int owns_group;
	/* Whether this process ends with its parent. */
	int knows_parent;
	/* Whether nothing but this process's calls changes its user and group ids, */
	int knows_users;
	/* and all threads have the same. */
	int users_differ;
	/* Calls that are changing something. One that a handler jumps out of is counted for good. */
	int changing[CHANGES];
	/* Marked descriptors. */
	uint64_t marked[MARK_WORDS];
} state;

/* ---- the lock ---- */

static int has_ended(uint32_t thread) { return CALL_2(SYS_tkill, thread, 0) == -ESRCH; }

/* The marks in `state` stay: their descriptors are marked again when the memory is returned. */
static void invalidate_all(void) {
	fastpath_answers_invalidate(&gate.answers, (1u << (FASTPATH_FSGID + 1)) - 1);
	fastpath_answers_unmark(&gate.answers, 0, UINT_MAX);
}

static void forget_all(void) {
	state.shares_memory = 1;
	invalidate_all();
	fastpath_answers_forget_memory(&gate.answers);
}

uint64_t enter(void) {
	const uint64_t all = ~(uint64_t)0;
	uint64_t mask = 0;
	uint32_t own;

	CALL_4(SYS_rt_sigprocmask, SIG_SETMASK, &all, &mask, sizeof(mask));
	own = (uint32_t)CALL_1(SYS_gettid, 0);
	for (unsigned turn = 1;; turn++) {
		uint32_t owner = 0;

		if (__atomic_compare_exchange_n(&state.owner, &owner, own, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
			return mask;
		/* A child of vfork was killed while it had the lock: what it has changed is unknown. */
		if (turn % TURNS_BETWEEN_CHECKS == 0 && has_ended(owner) &&
		    __atomic_compare_exchange_n(&state.owner, &owner, own, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
			forget_all();
			return mask;
		}
		CALL_1(SYS_sched_yield, 0);
	}
}

void leave(uint64_t mask) {
	__atomic_store_n(&state.owner, 0, __ATOMIC_RELEASE);
	CALL_4(SYS_rt_sigprocmask, SIG_SETMASK, &mask, NULL, sizeof(mask));
}

/* ---- what is true now; called with the lock ---- */

static void set(int identity, long value) { fastpath_answers_set(&gate.answers, identity, (uint32_t)value); }

static void set_users(void) {
	uint32_t ids[3] = {0};

	if (CALL_3(SYS_getresuid, &ids[0], &ids[1], &ids[2]) == 0) {
		set(FASTPATH_UID, ids[0]);
		set(FASTPATH_EUID, ids[1]);
		set(FASTPATH_SUID, ids[2]);
	}
	if (CALL_3(SYS_getresgid, &ids[0], &ids[1], &ids[2]) == 0) {
		set(FASTPATH_GID, ids[0]);
		set(FASTPATH_EGID, ids[1]);
		set(FASTPATH_SGID, ids[2]);
	}
	/* -1 is no id: nothing changes. */
	set(FASTPATH_FSUID, CALL_1(SYS_setfsuid, -1));
	set(FASTPATH_FSGID, CALL_1(SYS_setfsgid, -1));
}

static int is_own(void) { return !state.shares_memory && !state.lent && !state.changing[NAMESPACES]; }

static void set_all(void) {
	long own, session;

	if (!is_own())
		return;
	own = CALL_1(SYS_getpid, 0);
	set(FASTPATH_PID, own);
	if (!state.has_threads)
		set(FASTPATH_TID, own);
	/* Any other parent may be killed at any time. */
	if (state.knows_parent)
		set(FASTPATH_PPID, CALL_1(SYS_getppid, 0));
	if (!state.changing[GROUP]) {
		session = CALL_1(SYS_getsid, 0);
		set(FASTPATH_SID, session);
		/* The leader of a session has its group for good. */
		if (state.owns_group || session == own)
			set(FASTPATH_PGID, CALL_1(SYS_getpgid, 0));
	}
	if (state.knows_users && !state.users_differ && !state.changing[CREDENTIALS])
		set_users();
}

static int is_urandom(unsigned descriptor) {
	struct stat status;
	long flags;

	if (CALL_2(SYS_fstat, descriptor, &status) || !S_ISCHR(status.st_mode) || status.st_rdev != makedev(1, 9))
		return 0;
	flags = CALL_2(SYS_fcntl, descriptor, F_GETFL);
	return flags >= 0 && !(flags & O_PATH) && (flags & O_ACCMODE) != O_WRONLY;
}

static void mark_if_urandom(unsigned descriptor) {
	if (descriptor >= FASTPATH_ANSWERS_DESCRIPTORS || !state.owns_descriptors || !is_own() ||
	    state.changing[DESCRIPTORS] || !is_urandom(descriptor))
		return;
	state.marked[descriptor / 64] |= (uint64_t)1 << descriptor % 64;
	fastpath_answers_mark_urandom(&gate.answers, descriptor);
}

/* Marks again what was marked before it was taken back. */
static void mark_again(void) {
	for (unsigned descriptor = 0; descriptor < FASTPATH_ANSWERS_DESCRIPTORS; descriptor++)
		if (is_marked(descriptor))
			mark_if_urandom(descriptor);
}

static void unmark(unsigned first, unsigned last) {
	fastpath_answers_unmark(&gate.answers, first, last);
	for (unsigned i = first; i <= last && i < FASTPATH_ANSWERS_DESCRIPTORS; i++)
		state.marked[i / 64] &= ~((uint64_t)1 << i % 64);
}

static void share_descriptors(void) {
	state.owns_descriptors = 0;
	unmark(0, UINT_MAX);
}

/* ---- changes ---- */

void answers_start(int knows_users, int knows_parent) {
	state.owns_descriptors = 1;
	state.owns_group = 1;
	state.knows_users = knows_users;
	state.knows_parent = knows_parent;
	fastpath_answers_set_random(&gate.answers, 1);
	set_all();
}

int answers_know_users(void) { return state.knows_users; }

int is_marked(unsigned descriptor) {
	return descriptor < FASTPATH_ANSWERS_DESCRIPTORS && state.marked[descriptor / 64] >> descriptor % 64 & 1;
}

int is_alone(void) { return !state.has_threads && !state.shares_memory && !state.lent; }

int is_lent(void) { return state.lent; }

static void forget_parent(void) {
	state.knows_parent = 0;
	fastpath_answers_invalidate(&gate.answers, FASTPATH_IDENTITY_BIT(FASTPATH_PPID));
}

void answers_before(const struct changing *changing) {
	const uint64_t mask = enter();

	switch (changing->change) {
	case CREDENTIALS:
		/* The kernel then sends no signal at the parent's end any more. */
		forget_parent();
		state.users_differ |= state.has_threads;
		fastpath_answers_invalidate(&gate.answers, FASTPATH_CREDENTIALS);
		break;
	case GROUP:
		fastpath_answers_invalidate(&gate.answers,
					    FASTPATH_IDENTITY_BIT(FASTPATH_PGID) | FASTPATH_IDENTITY_BIT(FASTPATH_SID));
		break;
	case DESCRIPTORS:
		unmark(changing->first, changing->last);
		break;
	case MEMORY:
		fastpath_answers_forget_memory(&gate.answers);
		break;
	case PARENT:
		forget_parent();
		break;
	case NAMESPACES:
		forget_parent();
		state.knows_users = 0;
		share_descriptors();
		invalidate_all();
		break;
	case SHARE_DESCRIPTORS:
		share_descriptors();
		break;
	default:
		break;
	}
	state.changing[changing->change]++;
	leave(mask);
}

void answers_after(const struct changing *changing, long result) {
	const uint64_t mask = enter();

	state.changing[changing->change]--;
	switch (changing->change) {
	case MEMORY:
		/* What was used during the call may be gone. */
		fastpath_answers_forget_memory(&gate.answers);
		break;
	case CREDENTIALS:
	case GROUP:
	case NAMESPACES:
		set_all();
		break;
	case NEW_DESCRIPTOR:
		if (result >= 0)
			mark_if_urandom((unsigned)result);
		break;
	default:
		break;
	}
	leave(mask);
}

/* A child that uses this memory returns it if its parent waits for that, and if their descriptors are not shared. */
static int is_returned(uint64_t flags) { return flags & CLONE_VFORK && !(flags & CLONE_FILES); }

void answers_before_clone(uint64_t flags) {
	const uint64_t mask = enter();

	if (flags & CLONE_THREAD) {
		state.has_threads = 1;
		fastpath_answers_invalidate(&gate.answers, FASTPATH_IDENTITY_BIT(FASTPATH_TID));
		if (!(flags & CLONE_FILES))
			share_descriptors();
	} else if (flags & CLONE_VM) {
		if (is_returned(flags))
			state.lent++;
		else
			state.shares_memory = 1;
		invalidate_all();
	} else if (flags & CLONE_FILES) {
		share_descriptors();
	}
	leave(mask);
}

/* The child has one thread, a copy of the memory, and pages of answers that the kernel has wiped. */
static void start_child(uint64_t flags) {
	state.owner = 0;
	state.has_threads = 0;
	state.shares_memory = 0;
	state.lent = 0;
	state.owns_descriptors = !(flags & CLONE_FILES);
	state.owns_group = 0;
	state.knows_parent = 0;
	state.knows_users &= !(flags & CLONE_NEWUSER);
	state.users_differ = 0;
	memset(state.changing, 0, sizeof(state.changing));
	fastpath_answers_set_random(&gate.answers, 1);
	set_all();
	mark_again();
}

void answers_after_clone(uint64_t flags, long result) {
	uint64_t mask;

	if (result == 0) {
		if (!(flags & CLONE_VM))
			start_child(flags);
		return;
	}
	if (flags & CLONE_THREAD || !(flags & CLONE_VM) || !is_returned(flags))
		return;
	mask = enter();
	state.lent--;
	set_all();
	mark_again();
	leave(mask);
}

void answers_end(void) {
	const uint64_t mask = enter();

	forget_all();
	leave(mask);
}
