/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * This process's answers, kept exact: each is taken back before a call that changes it takes effect, and written anew
 * after it. docs/libfastpath.md, "What ends an answer", is the table behind it.
 *
 * All of this runs in handlers of SIGSYS, in any of the guest's threads.
 */
#ifndef DISPATCH_ANSWERS_H
#define DISPATCH_ANSWERS_H

#include <stdint.h>

enum change {
	NO_CHANGE,
	/* User and group ids. */
	CREDENTIALS,
	/* Process group and session. */
	GROUP,
	/* Descriptors that are closed or replaced. */
	DESCRIPTORS,
	/* A descriptor that may be one on /dev/urandom. */
	NEW_DESCRIPTOR,
	/* Memory that is unmapped or cannot be written any more. */
	MEMORY,
	/* A table of descriptors that is not this process's alone. */
	SHARE_DESCRIPTORS,
	/* What ends this process with its parent. */
	PARENT,
	/* The namespaces by which ids are numbered, or the table of descriptors. */
	NAMESPACES,
	CHANGES
};

struct changing {
	enum change change;
	/* DESCRIPTORS: from the first to the last. */
	unsigned first, last;
};

/* Writes the first answers of a program that has just been executed. `knows_users` is 0 in a user namespace whose ids
 * may still change, `knows_parent` 1 if this process ends with its parent (PR_SET_PDEATHSIG). */
void answers_start(int knows_users, int knows_parent);
/* Returns `knows_users` as it is now. */
int answers_know_users(void);

/* To be called before and after a call that changes something. `result` is the call's. */
void answers_before(const struct changing *changing);
void answers_after(const struct changing *changing, long result);

/* To be called before a call that makes a thread or process, with its flags (clone(2)), and behind it, in both. */
void answers_before_clone(uint64_t flags);
void answers_after_clone(uint64_t flags, long result);

/* Gives no answer about this process any more: a thread of it makes calls that the host does not see. */
void answers_end(void);

/* Returns whether the descriptor is marked as one on /dev/urandom. */
int is_marked(unsigned descriptor);

/* Whether this thread is the only one that uses this memory. */
int is_alone(void);
/* Whether another process uses this memory for now (vfork). */
int is_lent(void);

/* One thread at a time, without signals. enter() returns the signal mask for leave(). */
uint64_t enter(void);
void leave(uint64_t mask);

#endif
