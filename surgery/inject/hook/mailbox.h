/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The mailbox, by which a process sends requests to its attendant (the helper of `fastpath run`): a shared page of
 * slots, and a doorbell.
 *
 * Its contents are untrusted. The attendant checks the requesting thread through /proc and ptrace before it acts,
 * and a process that overwrites the mailbox loses only its own requests.
 *
 * The Rust side is surgery/inject/src/exec/mailbox.rs; the build asserts that every offset agrees.
 */
#ifndef FASTPATH_MAILBOX_H
#define FASTPATH_MAILBOX_H

#include "page.h"

/* The low bits of a slot's word. The other bits count how often the slot was freed: a thread that was stopped for so
 * long that its slot was given to another thread finds another count, and leaves the slot unchanged. */
enum fp_slot_state {
	FP_SLOT_FREE = 0,
	FP_SLOT_FILLING = 1, /* claimed by a thread that is writing its request */
	FP_SLOT_REQUEST = 2, /* ready for the attendant */
	FP_SLOT_TAKEN = 3,   /* in progress; the attendant frees it, and the thread continues */
	FP_SLOT_STATE = 7,   /* the mask of these */
};
#define FP_SLOT_REFUSED 8u /* of the last request that was answered: no other of this process will be served */
#define FP_SLOT_ONCE_FREED 16u

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

/* Why a request was not served. */
enum fp_unserved {
	FP_UNSERVED_GONE = 0,    /* there is no attendant */
	FP_UNSERVED_LATE = 1,    /* the attendant did not answer in time */
	FP_UNSERVED_HIDDEN = 2,  /* the attendant may not look at the process */
	FP_UNSERVED_REFUSED = 3, /* the program is of a kind that is not served */
	FP_UNSERVED_FAILED = 4,  /* a system call failed */
	FP_UNSERVED_REASONS = 5,
};

/* linux/futex.h: the kernel sets it in a robust futex when its owner ends. */
#define FP_OWNER_DIED 0x40000000u

struct fp_mailbox {
	fp_u32 doorbell; /* futex: counts requests */
	/* A robust futex of the attendant, which has FP_OWNER_DIED once it has ended, however that was. 0: none yet. */
	fp_u32 attendant;
	/* Not 0: the attendant did not answer a request in time, and has not run since. */
	fp_u32 late;
	fp_u32 unserved[FP_UNSERVED_REASONS]; /* numbers of requests, by fp_unserved */
	fp_u32 reserved[8];
	struct fp_slot slot[FP_SLOTS];
};

/* The start of a page that is private to the process (so that fork copies it). Its end is the stack of hook.S for
 * Go. */
struct fp_hook_state {
	fp_u64 entry;      /* the program's real entry point */
	fp_u64 entry_cell; /* address of AT_ENTRY's value on the stack */
	/* Not 0: make no system calls. A seccomp filter was installed here, or there is no attendant. */
	fp_u32 silent;
	fp_u32 stack_lock; /* 1: a thread is on the page's stack */
	/* Not 0: Yama requires that this PID is declared by PR_SET_PTRACER first. Here, where no other process can
	 * write. */
	fp_u32 ptracer;
	/* Not 0: rescued calls are system calls (rescue.S). A seccomp filter or a dispatcher of system calls was
	 * installed here, or the counter was forbidden, or that would not be noticed, because the libraries' calls are
	 * not redirected yet. */
	fp_u32 real_calls;
	/* Not 0: the attendant has ended, or may not look at this process. */
	fp_u32 unattended;
	fp_u32 reserved;
	/* What entry_cell points to where the kernel executed the dynamic linker itself, which moves AT_ENTRY. */
	fp_u64 no_cell;
};

#endif
