/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The identities of a process, and checks of them.
 */
#ifndef IDENTITY_H
#define IDENTITY_H

#include "hosttest.h"

/* Questions whose answer is an identity. */
enum question {
	ASK_PID,
	ASK_TID,
	ASK_PPID,
	ASK_PGID,
	ASK_SID,
	ASK_UID,
	ASK_EUID,
	ASK_GID,
	ASK_EGID,
	ASK_FSUID,
	ASK_FSGID,
	ASK_RESUID,
	ASK_RESGID,
#ifdef SYS_getpgrp
	ASK_PGRP,
#endif
	QUESTIONS
};

#define BIT(question) (1u << (question))
#define CREDENTIALS                                                                                                    \
	(BIT(ASK_UID) | BIT(ASK_EUID) | BIT(ASK_GID) | BIT(ASK_EGID) | BIT(ASK_FSUID) | BIT(ASK_FSGID) |               \
	 BIT(ASK_RESUID) | BIT(ASK_RESGID))
#define EVERYTHING (BIT(QUESTIONS) - 1)
/* What all threads of a process have in common. */
#define OF_PROCESS (EVERYTHING & ~BIT(ASK_TID))

const char *question_name(enum question question);
int can_ask(enum question question, enum way way);
/* The answer; those of getresuid and getresgid as one number. */
long ask_question(enum question question, enum way way);

/* Compares the answers by all ways with the truth, while nothing changes. */
void check_identity(const char *when);
void check_questions(unsigned mask, const char *when);
/* For children that share this process's memory and its thread's TLS: without the functions of libc. */
void check_identity_without_libc(const char *when);
/* Compares with a known value. */
void check_known(enum question question, long wanted, const char *when);
/* Compares the truth with /proc/thread-self/status, if that shows the ids that the process has. */
void check_status(const char *when);

/*
 * A change that is made again and again, while other threads or processes ask: between two changes the answer is one
 * value, and during a change the old or the new one. It lies in shared memory.
 */
struct race {
	atomic_ulong begun;
	atomic_ulong done;
	atomic_int is_over;
	atomic_int readers;
	/* What is asked, as bits. */
	unsigned mask;
	const char *when;
	/* Values after an even and after an odd number of changes. */
	long values[2][QUESTIONS];
};

struct race *race_new(const char *when, unsigned mask);
void race_free(struct race *race);
/* Takes the present truth for the values of one side. */
void race_learn(struct race *race, int side);
void race_begin(struct race *race);
void race_done(struct race *race);
/* Asks one question by one way, both picked. */
void race_ask(struct race *race);
/* Asks until the race is over. */
void race_reader(struct race *race);

/* Starts threads of this process that are readers. */
enum { READERS = 3 };
struct readers {
	unsigned long threads[READERS];
};
int readers_start(struct readers *readers, struct race *race);
void readers_join(struct readers *readers, struct race *race);

/* Changes forth and back while threads read, until a share of the budget has been used. */
struct transition {
	const char *name;
	long (*forth)(void);
	long (*back)(void);
};
void race_transition(const struct transition *transition, unsigned mask, double share);

#endif
