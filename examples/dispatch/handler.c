/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The handler of SIGSYS. It runs on the guest's stack, or on its alternate one, with the guest's signal mask, and with
 * the thread pointer of the guest's C library: nothing here may use this program's own, which errno and most functions
 * of libc do. Signals of the guest may interrupt it anywhere, and their handlers may jump out of it.
 */
#include "log.h"
#include "sites.h"
#include "trap.h"

#include <errno.h>
#include <linux/audit.h>
#include <sys/syscall.h>

#ifndef SYS_USER_DISPATCH
#define SYS_USER_DISPATCH 2 /* include/uapi/asm-generic/siginfo.h */
#endif

enum { SA_RESTORER_FLAG = 0x04000000, RED_ZONE = 128 };

/* Lets the guest make the call with its own registers, when the handler has returned. */
static void forward(const struct trap *trap) {
	const uint64_t stack_pointer = (uint64_t)trap->registers[REG_RSP];
	struct gate_forwarded *top = (void *)((stack_pointer - RED_ZONE - sizeof(*top)) & ~(uint64_t)15);

	if (trap->number == SYS_rt_sigreturn) {
		trap->registers[REG_RIP] = (greg_t)gate.forward_exactly;
		return;
	}
	*top = (struct gate_forwarded){(uint64_t)trap->registers[REG_RIP], stack_pointer};
	trap->registers[REG_RSP] = (greg_t)top;
	trap->registers[REG_RIP] = (greg_t)gate.forward;
}

static int answer(struct trap *trap) {
	long result;

	if (!fastpath_answer(gate.answer, (unsigned long)trap->number, (const long *)trap->arguments,
			     (unsigned long)trap->registers[REG_RSP], &result))
		return 0;
	finish(trap, result);
	return 1;
}

static int (*const treatments[])(struct trap *) = {
    treat_refused, treat_changes, treat_signals, treat_paths, treat_clone, treat_exec,
};

static void treat(struct trap *trap) {
	if (is_answerable(trap->number, (unsigned)trap->arguments[0]) &&
	    next_answer((uint64_t)trap->registers[REG_RIP] - SYSCALL_BYTES) == BY_HANDLER && answer(trap))
		return;
	for (unsigned i = 0; i < sizeof(treatments) / sizeof(treatments[0]); i++)
		if (treatments[i](trap))
			return;
	forward(trap);
}

static __attribute__((noinline)) void handle(int signal, siginfo_t *info, void *context) {
	greg_t *of = ((ucontext_t *)context)->uc_mcontext.gregs;
	struct trap trap = {
	    .context = context,
	    .registers = of,
	    .number = info->si_syscall,
	    .arguments = {(uint64_t)of[REG_RDI], (uint64_t)of[REG_RSI], (uint64_t)of[REG_RDX], (uint64_t)of[REG_R10],
			  (uint64_t)of[REG_R8], (uint64_t)of[REG_R9]},
	};

	if (info->si_code != SYS_USER_DISPATCH) {
		pass_sigsys(signal, info, context);
		return;
	}
	if ((const unsigned char *)info->si_call_addr == trap_on_purpose + SYSCALL_BYTES) {
		cloned(&trap);
		return;
	}
	count(TRAPS, 1);
	if (info->si_arch == AUDIT_ARCH_X86_64)
		treat(&trap);
	else
		/* int $0x80, whose numbers are i386's. */
		finish(&trap, -ENOSYS);
}

static void on_sigsys(int signal, siginfo_t *info, void *context) {
	/* The kernel leaves EFLAGS.AC as the guest has it. */
	__asm__ volatile("pushf\n\tandl %0, (%%rsp)\n\tpopf" : : "i"(~EFLAGS_AC) : "memory", "cc");
	handle(signal, info, context);
}

void start_dispatch(void) {
	/* A call in the handler traps as well. */
	const struct kernel_action action = {.handler = (uintptr_t)on_sigsys,
					     .flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK | SA_RESTORER_FLAG,
					     .restorer = gate.restorer};
	const uint64_t sigsys = SIGSYS_BIT;

	CALL_4(SYS_rt_sigaction, SIGSYS, &action, NULL, sizeof(action.mask));
	CALL_4(SYS_rt_sigprocmask, SIG_UNBLOCK, &sigsys, NULL, sizeof(sigsys));
	dispatch(1);
}
