/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* A system call of the guest, as it traps. */
#ifndef DISPATCH_TRAP_H
#define DISPATCH_TRAP_H

#include "answers.h"
#include "gate.h"

#include <signal.h>
#include <stdint.h>
#include <ucontext.h>

/* Unaligned accesses trap. */
enum { EFLAGS_AC = 0x40000 };

/* SIGSYS in a signal mask. */
#define SIGSYS_BIT ((uint64_t)1 << (SIGSYS - 1))

/* The kernel's struct sigaction. */
struct kernel_action {
	uint64_t handler, flags, restorer, mask;
};

struct trap {
	ucontext_t *context;
	greg_t *registers;
	long number;
	uint64_t arguments[6];
};

static inline void finish(const struct trap *trap, long result) { trap->registers[REG_RAX] = result; }

/* Makes the call here, in the handler. A handler of the guest may jump out of it. */
static inline long make(const struct trap *trap) {
	const uint64_t *of = trap->arguments;

	return CALL_6(trap->number, of[0], of[1], of[2], of[3], of[4], of[5]);
}

/* Calls that the guest must not make unchanged. Each returns whether it has treated the call. */
int treat_signals(struct trap *trap);
int treat_changes(struct trap *trap);
int treat_clone(struct trap *trap);
int treat_exec(struct trap *trap);
/* Frees what an execution by this thread has used, which was a child of vfork. */
void free_rooms_of(uint32_t thread);
int treat_paths(struct trap *trap);
int treat_refused(struct trap *trap);

/* Replaces /proc/self/exe, which is the host, by the path of the guest's program in a call that opens it. */
void name_own_program(struct trap *trap);

/* The path of the program that was executed. */
extern const char *own_program;

/* Ends a call that makes a process or a thread, in both: gate_cloned has trapped. */
void cloned(struct trap *trap);

/* A SIGSYS that is not the host's. */
void pass_sigsys(int signal, siginfo_t *info, void *context);

/* Makes this thread's calls trap from now on. */
void start_dispatch(void);

#endif
