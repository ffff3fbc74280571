/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* What the threads of `attached` share. main.c says what the program is for. */
#ifndef ATTACHED_H
#define ATTACHED_H

#include "../clocks.h"
#include "../findings.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>

enum { MAX_THREADS = 128 };

/* What else may go wrong than a clock. */
enum oddity {
	UNEXPLAINED_EINTR, /* no signal of this thread's own came */
	EARLY,             /* a sleep ended before its time */
	ODD_RESULT,        /* a system call's answer that it cannot give */
	LOST_BYTES,        /* a pipe's contents are not what was written */
	LOST_REGISTERS,    /* a calculation came to another result */
	WRONG_STACK,       /* a handler on another stack than its thread's */
	WRONG_MASK,        /* a signal mask that the thread has not set */
	CHILD_FAILED,      /* a child that saw a contradiction, or crashed */
	ODDITIES
};

/* How a thread's timer interrupts it. */
enum interrupts { NEVER, AND_EINTR, AND_RESTART, ON_OTHER_STACK, ON_OTHER_STACK_AND_RESTART };

struct thread;

struct role {
	const char *name;
	enum interrupts interrupts;
	/* One turn; called again and again. It must come to an end within a second or so. */
	void (*turn)(struct thread *);
};

struct thread {
	_Alignas(128) pthread_t id;
	const struct role *role;
	/* Which of those with this role. */
	int number;
	unsigned int random;
	timer_t timer;
	sigset_t mask;
	char *other_stack;
	/* Handlers that ran. */
	volatile sig_atomic_t signals;
	_Atomic unsigned long long turns;
	atomic_int is_parked;
	struct findings order, truth, in_handlers;
	unsigned long long oddities[ODDITIES], handled_eintr;
	/* What a role keeps from turn to turn. */
	long long kept;
};

extern _Thread_local struct thread *self;

/* Counts it, and tells of the first few on standard error. */
void odd(struct thread *, enum oddity, const char *what, long long value);

/* readers.c */
void read_in_order(struct thread *);
void read_hot(struct thread *);
void read_truth(struct thread *);
void compute(struct thread *);
/* One look at everything, for handlers and children; the reads that contradicted are counted. */
void look_once(struct findings *);

/* sleepers.c: nothing but waits, each kind in turn. */
void sleep_in_turns(struct thread *);
void prepare_sleepers(void);
void release_sleepers(void);

/* handover.c: bytes and turns that pass from one thread to another, and must neither be lost nor come twice. */
void write_pipe(struct thread *);
void read_pipe(struct thread *);
void wake(struct thread *);
void wait_to_be_woken(struct thread *);
void prepare_handover(void);

/* churn.c: what lives for a moment. */
void fork_reader(struct thread *);
void fork_lasting(struct thread *);
void fork_and_exec(struct thread *);
void vfork_and_exec(struct thread *);
void create_thread(struct thread *);
void prepare_churn(void);
int be_child(void);

void fail(const char *what);
void check_mask(struct thread *, const char *when);
unsigned int random_below(struct thread *, unsigned int limit);
void sleep_ns(long long ns);

#endif
