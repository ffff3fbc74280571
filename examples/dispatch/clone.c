/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Calls that make a process or a thread. */
#include "memory.h"
#include "trap.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>

/* The start of struct clone_args (include/uapi/linux/sched.h). */
struct clone3_arguments {
	uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size;
};

struct request {
	uint64_t flags;
	/* The child's stack pointer; 0: the same as its parent's. */
	uint64_t stack;
};

/* Those that matter here, and whether unaligned accesses of the guest trap. */
#define HAD_AC 0x80000000u
enum { FLAGS = CLONE_VM | CLONE_VFORK | CLONE_THREAD | CLONE_FILES | CLONE_NEWUSER };

/* Returns whether this is one of these calls. */
static int read_request(struct request *request, const struct trap *trap) {
	struct clone3_arguments arguments;

	*request = (struct request){0};
	switch (trap->number) {
	case SYS_fork:
		return 1;
	case SYS_vfork:
		request->flags = CLONE_VM | CLONE_VFORK;
		return 1;
	case SYS_clone:
		request->flags = trap->arguments[0];
		request->stack = trap->arguments[1];
		return 1;
	case SYS_clone3:
		/* The kernel answers EFAULT to the same call. */
		if (read_guest(&arguments, trap->arguments[0], sizeof(arguments)) == 0) {
			request->flags = arguments.flags;
			request->stack = arguments.stack ? arguments.stack + arguments.stack_size : 0;
		}
		return 1;
	default:
		return 0;
	}
}

/* A new thread takes no signal before its calls trap: its handlers' calls would not be seen. Both get the mask back
 * behind the call (cloned). */
static long block_signals(struct trap *trap, uint64_t stack) {
	uint64_t *mask = (uint64_t *)&trap->context->uc_sigmask;

	if (write_guest((uintptr_t)gate_mask_at(stack), mask, sizeof(*mask)))
		return -EFAULT;
	*gate_mask_at((uint64_t)trap->registers[REG_RSP]) = *mask;
	*mask = ~SIGSYS_BIT;
	return 0;
}

int treat_clone(struct trap *trap) {
	struct request request;
	uint64_t flags, mask, stub;

	if (!read_request(&request, trap))
		return 0;
	flags = request.flags & FLAGS;
	if (trap->registers[REG_EFL] & EFLAGS_AC)
		flags |= HAD_AC;
	mask = enter();
	stub = stub_for((uint64_t)trap->registers[REG_RIP], (uint32_t)flags);
	leave(mask);
	if (!stub) {
		finish(trap, -EAGAIN);
		return 1;
	}
	if (request.flags & CLONE_THREAD) {
		const long error = request.stack ? block_signals(trap, request.stack) : -EINVAL;

		if (error) {
			finish(trap, error);
			return 1;
		}
	}
	answers_before_clone(request.flags);
	/* The gate pushes words on a stack that may be unaligned. */
	trap->registers[REG_EFL] &= ~(greg_t)EFLAGS_AC;
	trap->registers[REG_RIP] = (greg_t)stub;
	return 1;
}

void cloned(struct trap *trap) {
	const struct gate_cloned *pushed = (const struct gate_cloned *)trap->registers[REG_RSP];
	greg_t *of = trap->registers;
	/* Those of the request, which may be gone. */
	const uint64_t flags = pushed->clone_flags;

	answers_after_clone(flags, (long)pushed->result);
	if (flags & CLONE_VFORK && (long)pushed->result > 0)
		free_rooms_of((uint32_t)pushed->result);
	if (flags & CLONE_THREAD)
		*(uint64_t *)&trap->context->uc_sigmask = pushed->mask;
	of[REG_RAX] = (greg_t)pushed->result;
	of[REG_RDI] = (greg_t)pushed->rdi;
	of[REG_RSI] = (greg_t)pushed->rsi;
	of[REG_RDX] = (greg_t)pushed->rdx;
	of[REG_R10] = (greg_t)pushed->r10;
	of[REG_R8] = (greg_t)pushed->r8;
	of[REG_RCX] = (greg_t)pushed->behind;
	of[REG_R11] = (greg_t)pushed->flags;
	if (flags & HAD_AC)
		of[REG_R11] |= EFLAGS_AC;
	of[REG_EFL] = of[REG_R11];
	of[REG_RIP] = (greg_t)pushed->behind;
	of[REG_RSP] += (greg_t)(__builtin_offsetof(struct gate_cloned, unused) + GATE_ROOM);
}
