/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The few system calls that a process on a synthetic vDSO must not make unnoticed. Freestanding; runs inside the
 * process, on whatever stack the caller has, between the caller's last instruction and its system call.
 *
 *   execve, execveat   the new program has none of our mappings: ask the attendant to be there when it starts
 *   seccomp filters,   from now on this process makes no system call that is not its own: ask no more
 *   PR_SET_SYSCALL_USER_DISPATCH
 *   time namespaces,   the page is no longer true here: put an unseeded one in its place, so that every clock takes
 *   PR_SET_TSC         the kernel's path
 *   clock_settime,     make the call here, and wait until the page has heard of it: who sets the clock reads the time
 *   settimeofday       that it set
 */
#include "mailbox.h"
#include "syscall.h"

#define HIDDEN __attribute__((visibility("hidden")))

/* Placed by hook.lds around the code. */
extern const struct fp_page fp_page HIDDEN;
extern struct fp_hook_state fp_state HIDDEN;
extern struct fp_mailbox fp_mailbox HIDDEN;

/* linux/futex.h, linux/prctl.h, linux/sched.h, asm-generic/mman-common.h */
enum { CLOCK_REALTIME = 0 };
enum { FUTEX_WAIT = 0, FUTEX_WAKE = 1 };
enum { PR_SET_SECCOMP = 22, PR_SET_TSC = 26, PR_SET_SYSCALL_USER_DISPATCH = 59 };
enum { PROT_READ = 1, MAP_PRIVATE = 2, MAP_FIXED = 0x10, MAP_ANONYMOUS = 0x20 };
enum { AT_FDCWD = -100 };
#define PR_SET_PTRACER 0x59616d61
#define CLONE_NEWTIME 0x80

/* A publisher answers within a millisecond. One that is stopped is known by its stale page before anybody asks; this
 * bounds the wait when it stops in the very middle. */
#define PATIENCE_NS 100000000L

struct timespec {
	long sec;
	long nsec;
};

/* Registers of a system call about to be made, as hook.S saves them. */
struct fp_call {
	unsigned long nr;
	unsigned long arg[6];
};

static fp_u32 load(fp_u32 *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }

static int exchange_if(fp_u32 *p, fp_u32 expected, fp_u32 desired) {
	return __atomic_compare_exchange_n(p, &expected, desired, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

/* The first anchors are good for a few milliseconds only; a publisher that is merely kept waiting for a CPU may be
 * later than that. */
#define NOT_LATE_YET_NS 100000000u

/* Counters tick at 24 MHz and at 5 GHz: only the page knows what an age is in nanoseconds. */
static int not_late_yet(const struct fp_anchor *newest, fp_u64 age) {
	fp_u32 mult = __atomic_load_n(&newest->mult, __ATOMIC_RELAXED);
	fp_u32 shift = __atomic_load_n(&newest->shift, __ATOMIC_RELAXED);

	/* So many counts are not multiplied without overflow; they are half a second and more. */
	return age >> 32 == 0 && age * mult >> (shift & 63) < NOT_LATE_YET_NS;
}

/* The publisher is alive as long as its page is fresh. */
static int publisher_is_alive(void) {
	const struct fp_anchor *newest = &fp_page.hres.copy[0];
	fp_u64 base = fp_load(&newest->base_cycles);
	fp_u32 cap = __atomic_load_n(&newest->cap_cycles, __ATOMIC_RELAXED);
	if (!cap)
		return 0; /* not seeded, or withdrawn here: the counter may not even be readable */
	fp_u64 age = fp_counter() - base;
	return age <= cap || not_late_yet(newest, age) || (long long)age < 0;
}

/* `freed` is the slot's count. */
static void wait_for_attendant(struct fp_slot *slot, fp_u32 freed) {
	const struct timespec patience = {0, PATIENCE_NS};
	/* An unseen request is taken back; one that is being worked on is waited for once more. */
	for (int timeouts = 0; timeouts < 2;) {
		fp_u32 word = load(&slot->state);
		if (word != (freed | FP_SLOT_REQUEST) && word != (freed | FP_SLOT_TAKEN))
			return;
		long r = fp_syscall4(FP_NR_futex, (long)&slot->state, FUTEX_WAIT, word, (long)&patience);
		if (r != -FP_ETIMEDOUT)
			continue;
		if (exchange_if(&slot->state, freed | FP_SLOT_REQUEST, freed + FP_SLOT_ONCE_FREED))
			return;
		timeouts++;
	}
}

static void ring(void) {
	__atomic_fetch_add(&fp_mailbox.doorbell, 1, __ATOMIC_ACQ_REL);
	fp_syscall4(FP_NR_futex, (long)&fp_mailbox.doorbell, FUTEX_WAKE, 1, 0);
}

static void ask(fp_u32 kind, fp_u64 dirfd, fp_u64 path, fp_u32 flags) {
	if (fp_state.filtered || !publisher_is_alive())
		return;
	for (int i = 0; i < FP_SLOTS; i++) {
		struct fp_slot *slot = &fp_mailbox.slot[i];
		fp_u32 freed = load(&slot->state);
		if ((freed & FP_SLOT_STATE) != FP_SLOT_FREE ||
		    !exchange_if(&slot->state, freed, freed | FP_SLOT_FILLING))
			continue;
		if (fp_state.ptracer)
			fp_syscall4(FP_NR_prctl, PR_SET_PTRACER, fp_state.ptracer, 0, 0);
		slot->kind = kind;
		slot->tid = (fp_u32)fp_syscall4(FP_NR_gettid, 0, 0, 0, 0);
		slot->flags = flags;
		slot->path = path;
		slot->dirfd = dirfd;
		/* A thread that was stopped in between may have lost the slot. */
		if (!exchange_if(&slot->state, freed | FP_SLOT_FILLING, freed | FP_SLOT_REQUEST))
			return;
		ring();
		wait_for_attendant(slot, freed);
		return;
	}
	/* The attendant frees those whose owner was killed. */
	ring();
}

/* How often to look, and for how long in all: the publisher is told by the kernel, and needs a CPU. */
#define LOOK_EVERY_NS 50000L
#define MOST_LOOKS (PATIENCE_NS / LOOK_EVERY_NS)

/*
 * Returns whether the clock was set. A failed call is left to the program, to fail again. A publisher that follows
 * another process's step at this very moment may be taken for one that has seen ours.
 */
static int set_clock(const struct fp_call *call) {
	const fp_u32 *steps = &fp_page.stats.steps;
	const fp_u32 before = __atomic_load_n(steps, __ATOMIC_ACQUIRE);
	const struct timespec a_moment = {0, LOOK_EVERY_NS};

	if (fp_state.filtered || !publisher_is_alive())
		return 0;
	if (fp_syscall4((long)call->nr, (long)call->arg[0], (long)call->arg[1], 0, 0) != 0)
		return 0;
	for (long look = 0; look < MOST_LOOKS && __atomic_load_n(steps, __ATOMIC_ACQUIRE) == before; look++)
		/* Nobody wakes it: a sleep by a call that the hook makes anyway. */
		fp_syscall4(FP_NR_futex, (long)&fp_state.filtered, FUTEX_WAIT, 0, (long)&a_moment);
	return 1;
}

static void withdraw_here(void) {
	fp_syscall6(FP_NR_mmap, (long)&fp_page, FP_PAGE_SIZE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
		    0);
}

/* Called before the system call is made, which is then the one that `call->nr` says. */
HIDDEN void fp_hook_call(struct fp_call *call) {
	const unsigned long *a = call->arg;
	switch (call->nr) {
	case FP_NR_clock_settime:
#ifdef FP_NR_clock_settime64
	case FP_NR_clock_settime64:
#endif
		if (a[0] != CLOCK_REALTIME)
			break;
		/* fall through */
	case FP_NR_settimeofday:
		/* It takes no argument, changes nothing, and returns 0, as the call that was made. */
		if (set_clock(call))
			call->nr = FP_NR_sched_yield;
		break;
	case FP_NR_execve:
		ask(FP_REQUEST_EXEC, (fp_u64)AT_FDCWD, a[0], 0);
		break;
	case FP_NR_execveat:
		ask(FP_REQUEST_EXEC, a[0], a[1], (fp_u32)a[4]);
		break;
	case FP_NR_seccomp:
		fp_state.filtered = 1;
		break;
	case FP_NR_prctl:
		if (a[0] == PR_SET_SECCOMP || (a[0] == PR_SET_SYSCALL_USER_DISPATCH && a[1]))
			fp_state.filtered = 1;
		else if (a[0] == PR_SET_TSC)
			withdraw_here();
		break;
	case FP_NR_unshare:
		if (a[0] & CLONE_NEWTIME)
			withdraw_here();
		break;
	case FP_NR_setns:
		if (a[1] == 0 || (a[1] & CLONE_NEWTIME))
			withdraw_here();
		break;
	}
}

/* Called by fp_hook_entry, once, where the loader believes the program to start. Returns where it does. */
HIDDEN unsigned long fp_hook_entered(void) {
	ask(FP_REQUEST_ENTRY, 0, 0, 0);
	unsigned long entry = (unsigned long)fp_state.entry;
	*(unsigned long *)(unsigned long)fp_state.entry_cell = entry; /* for getauxval(AT_ENTRY) */
	return entry;
}
