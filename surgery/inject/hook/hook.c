/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The few system calls that a process on a synthetic vDSO must not make unnoticed. Freestanding; runs inside the
 * process, on the caller's stack, between the caller's last instruction and its system call.
 *
 *     execve, execveat   the new program has none of our mappings: ask the attendant to attach when it starts
 *     seccomp filters,   make the call here. If it succeeds, this process makes no system call from then on that is not
 *     PR_SET_SYSCALL_    its own: send no more requests. It makes all of its own: rescued calls are system calls again
 *     USER_DISPATCH
 *     time namespaces,   if the page is no longer right here, replace it by an unseeded one, so that every clock falls
 *     PR_SET_TSC         back to the kernel. Without the counter, rescued calls are system calls again
 *     clock_settime,     make the call here, and wait until the page has the kernel's time: a program that sets the
 *     settimeofday,      clock then reads the time that it set
 *     adjtimex,
 *     clock_adjtime
 */
#include "floor.h"
#include "mailbox.h"
#include "syscall.h"

#define HIDDEN __attribute__((visibility("hidden")))

/* Placed by hook.lds around the code. */
extern const struct fp_page fp_page HIDDEN;
extern struct fp_hook_state fp_state HIDDEN;
extern struct fp_mailbox fp_mailbox HIDDEN;

/* asm-generic/errno.h, linux/futex.h, linux/prctl.h, linux/sched.h, asm-generic/mman-common.h */
enum { FP_ENOENT = 2, FP_ENOTDIR = 20, FP_ETIMEDOUT = 110 };
enum { CLOCK_REALTIME = 0, CLOCK_MONOTONIC = 1, CLOCK_BOOTTIME = 7, CLOCK_TAI = 11 };
enum { FUTEX_WAIT = 0, FUTEX_WAKE = 1 };
enum { PR_SET_SECCOMP = 22, PR_GET_TSC = 25, PR_SET_TSC = 26, PR_SET_SYSCALL_USER_DISPATCH = 59 };
enum { PR_TSC_SIGSEGV = 2 };
enum { SECCOMP_SET_MODE_FILTER = 1, SECCOMP_GET_ACTION_AVAIL = 2, SECCOMP_GET_NOTIF_SIZES = 3 };
enum { SECCOMP_FILTER_FLAG_TSYNC = 1, SECCOMP_FILTER_FLAG_TSYNC_ESRCH = 16 };
enum { PROT_READ = 1, MAP_PRIVATE = 2, MAP_FIXED = 0x10, MAP_ANONYMOUS = 0x20 };
enum { AT_FDCWD = -100, AT_EMPTY_PATH = 0x1000 };
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

/* A publisher refreshes its page after 100 ms. A page of at most this age is ahead of the kernel by less than an exec
 * takes. */
#define IN_TIME_NS 150000000u

/* Counters tick at 24 MHz or at 5 GHz: only the page's rate converts an age to nanoseconds. */
static int is_younger(fp_u64 age, fp_u32 limit_ns) {
	const struct fp_anchor *newest = &fp_page.hres.copy[0];
	fp_u32 mult = __atomic_load_n(&newest->mult, __ATOMIC_RELAXED);
	fp_u32 shift = __atomic_load_n(&newest->shift, __ATOMIC_RELAXED);

	/* More counts would overflow the multiplication; they are half a second and more. */
	return age >> 32 == 0 && age * mult >> (shift & 63) < limit_ns;
}

/* Returns the newest anchor's max age, and stores its age; 0 without an anchor: then the counter may not even be
 * readable. */
static fp_u32 look_at_newest(fp_u64 *age) {
	const struct fp_anchor *newest = &fp_page.hres.copy[0];
	fp_u64 base = fp_load(&newest->base_cycles);
	fp_u32 cap = __atomic_load_n(&newest->cap_cycles, __ATOMIC_RELAXED);

	if (cap)
		*age = fp_counter_of(&fp_page) - base;
	return cap;
}

/* Returns whether the publisher keeps the page fresh. */
static int publisher_is_alive(void) {
	fp_u64 age;
	fp_u32 cap = look_at_newest(&age);

	return cap && (age <= cap || is_younger(age, NOT_LATE_YET_NS) || (long long)age < 0);
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

/* execvp(3) tries to execute a program in each directory of PATH. For a file that does not exist, there is nothing to
 * serve, and the attendant would need as long to find that out as for the exec of a program. */
static int is_missing(fp_u64 dirfd, fp_u64 path) {
	char byte;
	const long result = fp_syscall4(FP_NR_readlinkat, (long)dirfd, (long)path, (long)&byte, sizeof byte);

	return result == -FP_ENOENT || result == -FP_ENOTDIR;
}

static void ask(fp_u32 kind, fp_u64 dirfd, fp_u64 path, fp_u32 flags) {
	struct fp_slot *slot;
	fp_u32 freed;
	int waited = 0;

	if (fp_state.silent || fp_state.unattended)
		return;
	if (kind == FP_REQUEST_EXEC && !(flags & AT_EMPTY_PATH) && is_missing(dirfd, path))
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
	const long long before_ns = fp_kernel_ns(CLOCK_MONOTONIC);
	const long long time_ns = fp_kernel_ns(clock);
	const long long after_ns = fp_kernel_ns(CLOCK_MONOTONIC);
	/* How precisely a publisher knows the distance, which measures it in the same way. */
	const long long spare_ns = after_ns - before_ns + 1000;
	const fp_u32 seq = __atomic_load_n(&newest->seq, __ATOMIC_ACQUIRE);
	const int is_shown = __atomic_load_n(&newest->floors, __ATOMIC_RELAXED) >> clock & 1;
	const long long above_ns = base_ns(newest, base) - base_ns(newest, FP_BASE_MONOTONIC);
	const int has_begun = (long long)(fp_counter_of(&fp_page) - fp_load(&newest->base_cycles)) >= 0;

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

/* Makes the call, and stores its result. */
static long make(struct fp_call *call) {
	const unsigned long *a = call->arg;
	const long result =
	    fp_syscall6((long)call->nr, (long)a[0], (long)a[1], (long)a[2], (long)a[3], (long)a[4], (long)a[5]);

	call->FP_RESULT = (unsigned long)result;
	return result;
}

/*
 * Makes a call by which the program may confine itself. After it has succeeded, no system call of the hook's is made:
 * not even by a signal handler that runs before the hook sees the result. So this is noted before, and counted, because
 * another thread's call may fail meanwhile.
 */
static int confine(struct fp_call *call, int may_be_a_thread_id) {
	__atomic_fetch_add(&fp_state.silent, 1, __ATOMIC_SEQ_CST);
	__atomic_fetch_add(&fp_state.real_calls, 1, __ATOMIC_SEQ_CST);
	const long result = make(call);
	if (result < 0 || (result > 0 && may_be_a_thread_id)) {
		__atomic_fetch_sub(&fp_state.silent, 1, __ATOMIC_SEQ_CST);
		__atomic_fetch_sub(&fp_state.real_calls, 1, __ATOMIC_SEQ_CST);
	}
	return 1;
}

static int seccomp(struct fp_call *call) {
	const unsigned long *a = call->arg;

	if ((unsigned)a[0] == SECCOMP_GET_ACTION_AVAIL || (unsigned)a[0] == SECCOMP_GET_NOTIF_SIZES)
		return 0;
	/* The filter was not installed, because of the thread whose id is the result. */
	return confine(call, (unsigned)a[0] == SECCOMP_SET_MODE_FILTER && a[1] & SECCOMP_FILTER_FLAG_TSYNC &&
				 !(a[1] & SECCOMP_FILTER_FLAG_TSYNC_ESRCH));
}

/* A program that has confined itself gets no system call for this. */
static void await_kernel(int others) {
	if (!fp_state.real_calls)
		fp_await_kernel(&fp_page, others);
}

/* The new program may not be served. */
static void await_before_exec(void) {
	fp_u64 age;

	if (look_at_newest(&age) && !is_younger(age, IN_TIME_NS))
		await_kernel(0);
}

static void withdraw_here(void) {
	fp_syscall6(FP_NR_mmap, (long)&fp_page, FP_PAGE_SIZE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
		    0);
}

/* Withdraws the page before the program forbids the counter: afterwards no reader may find an anchor. */
static void forbid_counter(void) {
	int mode;

	if (!fp_state.real_calls && fp_syscall4(FP_NR_prctl, PR_GET_TSC, (long)&mode, 0, 0) < 0)
		return; /* the kernel has no such thing */
	await_kernel(1);
	__atomic_fetch_add(&fp_state.real_calls, 1, __ATOMIC_SEQ_CST);
	withdraw_here();
}

/* Bounds of the distances of REALTIME and BOOTTIME from MONOTONIC: they differ between time namespaces. */
struct distances {
	long long least_ns[2], most_ns[2];
};

static void measure(struct distances *known) {
	/* A thread that is stopped between two reads learns less. */
	for (int i = 0; i < 8; i++) {
		const int which = i & 1;
		const long long before_ns = fp_kernel_ns(CLOCK_MONOTONIC);
		const long long time_ns = fp_kernel_ns(which ? CLOCK_BOOTTIME : CLOCK_REALTIME);
		const long long after_ns = fp_kernel_ns(CLOCK_MONOTONIC);

		if (i < 2 || time_ns - after_ns > known->least_ns[which])
			known->least_ns[which] = time_ns - after_ns;
		if (i < 2 || time_ns - before_ns < known->most_ns[which])
			known->most_ns[which] = time_ns - before_ns;
	}
}

static int differ(const struct distances *one, const struct distances *other) {
	for (int which = 0; which < 2; which++)
		if (one->least_ns[which] > other->most_ns[which] || other->least_ns[which] > one->most_ns[which])
			return 1;
	return 0;
}

/*
 * The kernel lets a process with other threads enter no time namespace. Without a type, the descriptor alone says which
 * namespace it is, and one with the same clocks changes nothing.
 */
static int enter_namespace(struct fp_call *call) {
	const int may_look = !call->arg[1] && !fp_state.real_calls;
	struct distances before, after;

	await_kernel(1);
	if (may_look)
		measure(&before);
	if (make(call) < 0)
		return 1;
	if (may_look)
		measure(&after);
	if (!may_look || differ(&before, &after))
		withdraw_here();
	return 1;
}

/* The page stays right for this process, and is not for those that it forks. */
static int leave_namespace(struct fp_call *call) {
	if (make(call) >= 0) {
		await_kernel(1);
		withdraw_here();
	}
	return 1;
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
		await_before_exec();
		ask(FP_REQUEST_EXEC, (fp_u64)AT_FDCWD, a[0], 0);
		break;
	case FP_NR_execveat:
		await_before_exec();
		ask(FP_REQUEST_EXEC, a[0], a[1], (fp_u32)a[4]);
		break;
	case FP_NR_seccomp:
		return seccomp(call);
	case FP_NR_prctl:
		if (a[0] == PR_SET_SECCOMP || (a[0] == PR_SET_SYSCALL_USER_DISPATCH && a[1]))
			return confine(call, 0);
		if (a[0] == PR_SET_TSC && (unsigned)a[1] == PR_TSC_SIGSEGV)
			forbid_counter();
		break;
	case FP_NR_unshare:
		if (a[0] & CLONE_NEWTIME)
			return leave_namespace(call);
		break;
	case FP_NR_setns:
		if (a[1] == 0 || (a[1] & CLONE_NEWTIME))
			return enter_namespace(call);
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
