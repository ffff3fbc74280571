/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The few system calls that a process on a synthetic vDSO must not make unnoticed. Freestanding; runs inside the
 * process, on the caller's stack, between the caller's last instruction and its system call.
 *
 *     execve, execveat   the new program has none of our mappings: ask the attendant to attach when it starts
 *     seccomp filters,   from now on this process makes no system call that is not its own: send no more requests. It
 *     PR_SET_SYSCALL_    makes all of its own: rescued calls are system calls again
 *     USER_DISPATCH
 *     time namespaces,   the page is no longer right here: replace it by an unseeded one, so that every clock falls
 *     PR_SET_TSC         back to the kernel. Without the counter, rescued calls are system calls again
 *     clock_settime,     make the call here, and wait until the page has the kernel's time: a program that sets the
 *     settimeofday,      clock then reads the time that it set
 *     adjtimex,
 *     clock_adjtime
 */
#include "mailbox.h"
#include "syscall.h"

#define HIDDEN __attribute__((visibility("hidden")))

/* Placed by hook.lds around the code. */
extern const struct fp_page fp_page HIDDEN;
extern struct fp_hook_state fp_state HIDDEN;
extern struct fp_mailbox fp_mailbox HIDDEN;

/* asm-generic/errno.h, linux/futex.h, linux/prctl.h, linux/sched.h, asm-generic/mman-common.h */
enum { FP_ETIMEDOUT = 110 };
enum { CLOCK_REALTIME = 0, CLOCK_MONOTONIC = 1, CLOCK_TAI = 11 };
enum { FUTEX_WAIT = 0, FUTEX_WAKE = 1 };
enum { PR_SET_SECCOMP = 22, PR_SET_TSC = 26, PR_SET_SYSCALL_USER_DISPATCH = 59 };
enum { PROT_READ = 1, MAP_PRIVATE = 2, MAP_FIXED = 0x10, MAP_ANONYMOUS = 0x20 };
enum { AT_FDCWD = -100 };
#define PR_SET_PTRACER 0x59616d61
#define CLONE_NEWTIME 0x80

/* An attendant answers within a millisecond if it gets a CPU. A thread that waits for it looks at intervals of LOOK_MS
 * whether it lives, and gives up after LONGEST_WAIT_MS: the attendant was stopped. */
#define LOOK_MS 100
#define LONGEST_WAIT_MS 5000

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

/* The first anchors are valid for a few milliseconds only; a publisher that waits for a CPU may be later than that. */
#define NOT_LATE_YET_NS 100000000u

/* Counters tick at 24 MHz or at 5 GHz: only the page's rate converts an age to nanoseconds. */
static int not_late_yet(const struct fp_anchor *newest, fp_u64 age) {
	fp_u32 mult = __atomic_load_n(&newest->mult, __ATOMIC_RELAXED);
	fp_u32 shift = __atomic_load_n(&newest->shift, __ATOMIC_RELAXED);

	/* More counts would overflow the multiplication; they are half a second and more. */
	return age >> 32 == 0 && age * mult >> (shift & 63) < NOT_LATE_YET_NS;
}

/* Reads the counter in the counts of the anchors: vdso/page.h, FP_PAGE_OFFSETS. */
static fp_u64 counter_of_page(void) {
#ifdef FP_HAS_CPU_NUMBER
	unsigned aux;

	if (fp_page.header.flags & FP_PAGE_OFFSETS) {
		fp_u64 counter = __builtin_ia32_rdtscp(&aux);
		return counter - fp_offset_of(&fp_page.offsets, aux);
	}
#endif
	return fp_counter();
}

/* Returns whether the publisher keeps the page fresh. */
static int publisher_is_alive(void) {
	const struct fp_anchor *newest = &fp_page.hres.copy[0];
	fp_u64 base = fp_load(&newest->base_cycles);
	fp_u32 cap = __atomic_load_n(&newest->cap_cycles, __ATOMIC_RELAXED);
	if (!cap)
		return 0; /* the counter may not even be readable */
	fp_u64 age = counter_of_page() - base;
	return age <= cap || not_late_yet(newest, age) || (long long)age < 0;
}

static void count(enum fp_unserved reason) { __atomic_fetch_add(&fp_mailbox.unserved[reason], 1, __ATOMIC_RELAXED); }

static int attendant_lives(void) {
	const fp_u32 word = load(&fp_mailbox.attendant);

	return word && !(word & FP_OWNER_DIED);
}

/* Waits until the word differs from `seen`, or it is time to look at the attendant. Returns the time to count, in
 * milliseconds: a signal may end a wait at once, again and again. */
static int wait_for_change(fp_u32 *word, fp_u32 seen) {
	const struct timespec timeout = {0, LOOK_MS * 1000000L};
	const long r = fp_syscall4(FP_NR_futex, (long)word, FUTEX_WAIT, seen, (long)&timeout);

	return r == -FP_ETIMEDOUT ? LOOK_MS : 1;
}

static void ring(void) {
	__atomic_fetch_add(&fp_mailbox.doorbell, 1, __ATOMIC_ACQ_REL);
	fp_syscall4(FP_NR_futex, (long)&fp_mailbox.doorbell, FUTEX_WAKE, 1, 0);
}

/* A process asks no attendant that has ended, or may not look at it, for a second time. */
static void end_of_attendance(void) {
	fp_state.unattended = 1;
	count(FP_UNSERVED_GONE);
}

/* The attendant was stopped, or gets no CPU at all. No other request waits until it has run again. */
static void give_up(void) {
	__atomic_store_n(&fp_mailbox.late, 1, __ATOMIC_RELEASE);
	count(FP_UNSERVED_LATE);
}

/* Waits until the attendant has handled the request, from `waited` on. `freed` is the slot's count. */
static void wait_for_attendant(struct fp_slot *slot, fp_u32 freed, int waited) {
	for (;;) {
		fp_u32 word = load(&slot->state);
		if (word != (freed | FP_SLOT_REQUEST) && word != (freed | FP_SLOT_TAKEN)) {
			const fp_u32 refused = (freed & ~FP_SLOT_REFUSED) + FP_SLOT_ONCE_FREED + FP_SLOT_REFUSED;
			if ((word & ~(fp_u32)FP_SLOT_STATE) == refused)
				fp_state.unattended = 1;
			return;
		}
		const int lives = attendant_lives();
		if (lives && waited < LONGEST_WAIT_MS) {
			waited += wait_for_change(&slot->state, word);
			continue;
		}
		/* A request in progress is freed by the attendant. */
		if (word == (freed | FP_SLOT_REQUEST) &&
		    !exchange_if(&slot->state, word, (freed & ~FP_SLOT_REFUSED) + FP_SLOT_ONCE_FREED))
			continue;
		if (lives)
			give_up();
		else
			end_of_attendance();
		return;
	}
}

/* Returns a slot that this thread has claimed, and its count; null: all are in use. */
static struct fp_slot *claim(fp_u32 *freed) {
	for (int i = 0; i < FP_SLOTS; i++) {
		struct fp_slot *slot = &fp_mailbox.slot[i];
		*freed = load(&slot->state);
		if ((*freed & FP_SLOT_STATE) == FP_SLOT_FREE &&
		    exchange_if(&slot->state, *freed, *freed | FP_SLOT_FILLING))
			return slot;
	}
	return 0;
}

static void ask(fp_u32 kind, fp_u64 dirfd, fp_u64 path, fp_u32 flags) {
	struct fp_slot *slot;
	fp_u32 freed;
	int waited = 0;

	if (fp_state.silent || fp_state.unattended)
		return;
	if (load(&fp_mailbox.late)) {
		/* It clears this as soon as it runs. */
		ring();
		count(FP_UNSERVED_LATE);
		return;
	}
	for (;;) {
		if (!attendant_lives()) {
			end_of_attendance();
			return;
		}
		slot = claim(&freed);
		if (slot)
			break;
		if (waited >= LONGEST_WAIT_MS) {
			give_up();
			return;
		}
		/* The attendant frees the slots of killed threads. */
		fp_u32 *first = &fp_mailbox.slot[0].state;
		fp_u32 seen = load(first);
		ring();
		if ((seen & FP_SLOT_STATE) != FP_SLOT_FREE)
			waited += wait_for_change(first, seen);
	}
	if (fp_state.ptracer)
		fp_syscall4(FP_NR_prctl, PR_SET_PTRACER, fp_state.ptracer, 0, 0);
	slot->kind = kind;
	slot->tid = (fp_u32)fp_syscall4(FP_NR_gettid, 0, 0, 0, 0);
	slot->flags = flags;
	slot->path = path;
	slot->dirfd = dirfd;
	/* A thread that was stopped in between may have lost the slot. */
	if (!exchange_if(&slot->state, freed | FP_SLOT_FILLING, freed | FP_SLOT_REQUEST)) {
		count(FP_UNSERVED_LATE);
		return;
	}
	ring();
	wait_for_attendant(slot, freed, waited);
}

/* The kernel's struct for 64-bit seconds, on every ISA. */
struct kernel_timespec {
	long long sec;
	long long nsec;
};

#ifndef FP_NR_clock_gettime64
#define FP_NR_clock_gettime64 FP_NR_clock_gettime
#endif

static long long kernel_ns(int clock) {
	struct kernel_timespec now = {0, 0};

	fp_syscall4(FP_NR_clock_gettime64, clock, (long)&now, 0, 0);
	return now.sec * 1000000000 + now.nsec;
}

static long long base_ns(const struct fp_anchor *anchor, unsigned base) {
	return (long long)(fp_load(&anchor->base[base].sec) * 1000000000 +
			   (fp_load(&anchor->base[base].nsec_shifted) >> (anchor->shift & 63)));
}

/*
 * Returns whether no reader of the clock gets another time than the kernel's: the newest anchor is in force, and has
 * the clock as far from MONOTONIC as the kernel, or no reader was shown the clock.
 */
static int shows_kernels_time(int clock, unsigned base) {
	const struct fp_anchor *newest = &fp_page.hres.copy[0];
	const long long before_ns = kernel_ns(CLOCK_MONOTONIC);
	const long long time_ns = kernel_ns(clock);
	const long long after_ns = kernel_ns(CLOCK_MONOTONIC);
	/* How precisely a publisher knows the distance, which measures it in the same way. */
	const long long spare_ns = after_ns - before_ns + 1000;
	const fp_u32 seq = __atomic_load_n(&newest->seq, __ATOMIC_ACQUIRE);
	const int is_shown = __atomic_load_n(&newest->floors, __ATOMIC_RELAXED) >> clock & 1;
	const long long above_ns = base_ns(newest, base) - base_ns(newest, FP_BASE_MONOTONIC);
	const int has_begun = (long long)(counter_of_page() - fp_load(&newest->base_cycles)) >= 0;

	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	if (seq & 1 || __atomic_load_n(&newest->seq, __ATOMIC_RELAXED) != seq)
		return 0;
	return !is_shown ||
	       (has_begun && above_ns >= time_ns - after_ns - spare_ns && above_ns <= time_ns - before_ns + spare_ns);
}

/* Time between looks, and most looks. The publisher needs a CPU when the kernel wakes it. The kernel does not announce
 * a change of TAI: the publisher may see it at the next refresh, and no anchor lives longer than this. */
#define LOOK_EVERY_NS 50000L
#define MOST_LOOKS (400000000L / LOOK_EVERY_NS)

/*
 * Makes the call and returns 1, with its result in the register of the result; returns 0 if the program must make it.
 * What the call has set is not asked: its argument may be in memory that cannot be read.
 */
static int set_clock(struct fp_call *call) {
	const struct timespec a_moment = {0, LOOK_EVERY_NS};
	long result;

	if (fp_state.silent || !publisher_is_alive())
		return 0;
	result = fp_syscall4((long)call->nr, (long)call->arg[0], (long)call->arg[1], 0, 0);
	for (long look = 0; result >= 0 && look < MOST_LOOKS; look++) {
		if (shows_kernels_time(CLOCK_REALTIME, FP_BASE_REALTIME) && shows_kernels_time(CLOCK_TAI, FP_BASE_TAI))
			break;
		/* Nothing wakes it: this is a sleep by a system call that the hook makes anyway. */
		fp_syscall4(FP_NR_futex, (long)&fp_state.silent, FUTEX_WAIT, 0, (long)&a_moment);
	}
	call->FP_RESULT = (unsigned long)result;
	return 1;
}

/* rescue.S has this offset. */
_Static_assert(__builtin_offsetof(struct fp_hook_state, real_calls) == 28, "real_calls lies elsewhere");

static void confine(void) {
	fp_state.silent = 1;
	fp_state.real_calls = 1;
}

static void withdraw_here(void) {
	fp_syscall6(FP_NR_mmap, (long)&fp_page, FP_PAGE_SIZE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
		    0);
}

/* Called before a system call. Returns whether it was made here, with its result in the register for that. */
HIDDEN int fp_hook_call(struct fp_call *call) {
	const unsigned long *a = call->arg;
	switch (call->nr) {
	case FP_NR_clock_settime:
	case FP_NR_clock_adjtime:
#ifdef FP_NR_clock_settime64
	case FP_NR_clock_settime64:
	case FP_NR_clock_adjtime64:
#endif
		if (a[0] != CLOCK_REALTIME)
			break;
		/* fall through */
	case FP_NR_settimeofday:
	case FP_NR_adjtimex:
		return set_clock(call);
	case FP_NR_execve:
		ask(FP_REQUEST_EXEC, (fp_u64)AT_FDCWD, a[0], 0);
		break;
	case FP_NR_execveat:
		ask(FP_REQUEST_EXEC, a[0], a[1], (fp_u32)a[4]);
		break;
	case FP_NR_seccomp:
		confine();
		break;
	case FP_NR_prctl:
		if (a[0] == PR_SET_SECCOMP || (a[0] == PR_SET_SYSCALL_USER_DISPATCH && a[1])) {
			confine();
		} else if (a[0] == PR_SET_TSC) {
			fp_state.real_calls = 1;
			withdraw_here();
		}
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
	return 0;
}

/* Called once by fp_hook_entry, at the loader's jump to AT_ENTRY. Returns the program's real entry point. */
HIDDEN unsigned long fp_hook_entered(void) {
	ask(FP_REQUEST_ENTRY, 0, 0, 0);
	unsigned long entry = (unsigned long)fp_state.entry;
	*(unsigned long *)(unsigned long)fp_state.entry_cell = entry; /* for getauxval(AT_ENTRY) */
	return entry;
}
