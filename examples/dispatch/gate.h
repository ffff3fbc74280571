/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Syscall User Dispatch (Documentation/admin-guide/syscall-user-dispatch.rst): each system call of a thread raises
 * SIGSYS, unless its instruction lies in one range of addresses. Here that is the region's code:
 *
 *	ring  |  answers  |  page  |  image  |  gate  |  stubs
 *	                             '------ no traps ------'
 *
 * The host itself makes its calls by the gate. A call of the guest, once the host has seen it, is made by the gate's
 * code or a stub with the guest's own registers, after the handler has returned.
 */
#ifndef DISPATCH_GATE_H
#define DISPATCH_GATE_H

/* The red zone below the guest's stack pointer, and a saved signal mask above struct gate_cloned. */
#define GATE_ROOM 144

#define GATE_NR_RT_SIGRETURN 15
#define GATE_NR_PRCTL 157
#define GATE_DISPATCH 59 /* PR_SET_SYSCALL_USER_DISPATCH */

#ifndef __ASSEMBLER__
#include <fastpath.h>
#include <stdint.h>

/* Where gate_forward continues. Aligned, whatever the guest's stack pointer is: EFLAGS.AC may be set. */
struct gate_forwarded {
	uint64_t behind, stack_pointer;
};

/* What gate_cloned has pushed. */
struct gate_cloned {
	uint64_t r8, r10, rdx, rsi, rdi;
	uint64_t clone_flags, behind, result, flags;
	uint64_t unused;
	uint64_t mask; /* for a thread (gate_mask_at) */
};

/* Where the mask is kept that a new thread and its maker return to, by either's stack pointer. */
static inline uint64_t *gate_mask_at(uint64_t stack_pointer) { return (uint64_t *)(stack_pointer - GATE_ROOM + 8); }

struct gate {
	/* The pages and functions of the image. */
	unsigned char *image;
	struct fastpath_answers answers;
	const void *answer; /* __fastpath_answer */
	uint64_t entry;     /* __fastpath_syscall */
	/* Code of the gate. */
	long (*call)(long number, long a, long b, long c, long d, long e, long f);
	uint64_t restorer, forward, forward_exactly, cloned;
	/* Pages for stubs. */
	unsigned char *stubs;
	/* The range without traps. */
	uint64_t start, size;
};

enum { MOST_STUBS = 64 };

extern struct gate gate;

/* Maps the region. `flags` are those of an instance of the image. Returns 0, or -1 after a message. */
int map_gate(int page_fd, uint32_t flags);

/* The address of an instruction that traps (gate.S), and what the program counter is then. */
extern const unsigned char trap_on_purpose[];
enum { SYSCALL_BYTES = 2 };

/* Makes calls of this thread trap, or not. Returns 0, or -errno. */
long dispatch(int is_on);

/*
 * Returns the address of code that makes a call with the guest's registers, stack pointer too, and continues `behind`:
 * by gate_cloned with these flags of clone(2), or directly with NOT_CLONED. Returns 0 if there is no room for it. One
 * thread at a time may call this.
 */
#define NOT_CLONED 0xffffffffu
uint64_t stub_for(uint64_t behind, uint32_t flags);

#define CALL_1(number, a) gate.call(number, (long)(a), 0, 0, 0, 0, 0)
#define CALL_2(number, a, b) gate.call(number, (long)(a), (long)(b), 0, 0, 0, 0)
#define CALL_3(number, a, b, c) gate.call(number, (long)(a), (long)(b), (long)(c), 0, 0, 0)
#define CALL_4(number, a, b, c, d) gate.call(number, (long)(a), (long)(b), (long)(c), (long)(d), 0, 0)
#define CALL_5(number, a, b, c, d, e) gate.call(number, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), 0)
#define CALL_6(number, a, b, c, d, e, f)                                                                               \
	gate.call(number, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))
#endif

#endif
