/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The mailbox, by which a process sends requests to its attendant (the helper of `fastpath run`): a shared page of
 * slots, and a doorbell.
 *
 * Its contents are untrusted. The attendant checks the requesting thread through /proc and ptrace before it acts,
 * and a process that overwrites the mailbox loses only its own requests.
 *
 * The Rust side is crates/inject/src/mailbox.rs; the build asserts that every offset agrees.
 */
#ifndef FASTPATH_MAILBOX_H
#define FASTPATH_MAILBOX_H

#include "../vdso/page.h"

/* The low bits of a slot's word. The other bits count how often the slot was freed: a thread that was stopped for so
 * long that its slot was given to another thread finds another count, and leaves the slot unchanged. */
enum fp_slot_state {
	FP_SLOT_FREE = 0,
	FP_SLOT_FILLING = 1, /* claimed by a thread that is writing its request */
	FP_SLOT_REQUEST = 2, /* ready for the attendant */
	FP_SLOT_TAKEN = 3,   /* in progress; the attendant frees it, and the thread continues */
	FP_SLOT_STATE = 7,   /* the mask of these */
};
#define FP_SLOT_ONCE_FREED 8u

enum fp_request_kind {
	FP_REQUEST_EXEC = 1,  /* about to call execve or execveat */
	FP_REQUEST_ENTRY = 2, /* the loader has finished: the program's own libc is mapped */
};

struct fp_slot {
	fp_u32 state; /* futex: an fp_slot_state, and how often it was freed */
	fp_u32 kind;
	fp_u32 tid;   /* in the PID namespace of the thread */
	fp_u32 flags; /* execveat's */
	fp_u64 path;  /* address in the asking process */
	fp_u64 dirfd; /* execveat's; AT_FDCWD for execve */
};

#define FP_SLOTS 126

struct fp_mailbox {
	fp_u32 doorbell; /* futex: counts requests */
	/* Not 0: no attendant answers. It matters as long as the page has had no anchor, by which the hook sees later
	 * whether the attendant lives. */
	fp_u32 closed;
	fp_u32 reserved[14];
	struct fp_slot slot[FP_SLOTS];
};

/* The start of a page that is private to the process (so that fork copies it). Its end is the stack of hook.S for
 * Go. */
struct fp_hook_state {
	fp_u64 entry;      /* the program's real entry point */
	fp_u64 entry_cell; /* address of AT_ENTRY's value on the stack */
	/* Not 0: send no requests. A seccomp filter was installed here, or no attendant answers. */
	fp_u32 silent;
	fp_u32 stack_lock; /* 1: a thread is on the page's stack */
	/* Not 0: Yama requires that this PID is declared by PR_SET_PTRACER first. Here, where no other process can
	 * write. */
	fp_u32 ptracer;
	/* Not 0: rescued calls are system calls (rescue.S). A seccomp filter or a dispatcher of system calls was
	 * installed here, or the counter was forbidden, or that would not be noticed, because the libraries' calls are
	 * not redirected yet. */
	fp_u32 real_calls;
	/* Timeouts after which the request at the entry is still not taken back, and not 0: it is made even if the page
	 * is stale. A program that must be served with those that it executes waits for an attendant that gets no CPU.
	 */
	fp_u32 more_timeouts;
	fp_u32 reserved;
	/* What entry_cell points to where the kernel executed the dynamic linker itself, which moves AT_ENTRY. */
	fp_u64 no_cell;
};

#endif
