/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* State that the threads of `attached` share. main.c describes the program. */
#ifndef ATTACHED_H
#define ATTACHED_H

#include "../clocks.h"
#include "../findings.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>

enum { MAX_THREADS = 128 };

/* Errors other than those of a clock. */
enum oddity {
	UNEXPLAINED_EINTR, /* without a signal of this thread */
	EARLY,             /* a sleep ended before its time */
	ODD_RESULT,        /* an impossible result of a system call */
	LOST_BYTES,        /* a pipe's contents are not those that were written */
	LOST_REGISTERS,    /* a calculation had another result */
	WRONG_STACK,       /* a handler ran on another stack than its thread's */
	WRONG_MASK,        /* a signal mask that the thread has not set */
	CHILD_FAILED,      /* a child saw a contradiction or crashed */
	ODDITIES
};

/* How a thread's timer interrupts it. */
enum interrupts { NEVER, AND_EINTR, AND_RESTART, ON_OTHER_STACK, ON_OTHER_STACK_AND_RESTART };

struct thread;

struct role {
	const char *name;
	enum interrupts interrupts;
	/* One turn, which is called again and again. It must end within a second or so. */
	void (*turn)(struct thread *);
};

struct thread {
	_Alignas(128) pthread_t id;
	const struct role *role;
	/* Number among the threads of this role. */
	int number;
	unsigned int random;
	timer_t timer;
	sigset_t mask;
	char *other_stack;
	/* Number of handlers that ran. */
	volatile sig_atomic_t signals;
	_Atomic unsigned long long turns;
	atomic_int is_parked;
	struct findings order, truth, in_handlers;
	unsigned long long oddities[ODDITIES], handled_eintr;
	/* State that a role keeps from turn to turn. */
	long long kept;
};

extern _Thread_local struct thread *self;

/* Counts an oddity, and prints the first few to standard error. */
void odd(struct thread *, enum oddity, const char *what, long long value);

/* readers.c */
void read_in_order(struct thread *);
void read_hot(struct thread *);
void read_truth(struct thread *);
void compute(struct thread *);
/* Looks at every clock once, for handlers and children; counts contradictory reads. */
void look_once(struct findings *);

/* sleepers.c: only waits, each kind in turn. */
void sleep_in_turns(struct thread *);
void prepare_sleepers(void);
void release_sleepers(void);

/* handover.c: bytes and turns that pass from one thread to another, and must be neither lost nor duplicated. */
void write_pipe(struct thread *);
void read_pipe(struct thread *);
void wake(struct thread *);
void wait_to_be_woken(struct thread *);
void prepare_handover(void);

/* churn.c: short-lived processes and threads. */
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
