/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Answers system calls from the pages (answers.h).
 *
 * The kernel answers EFAULT where a result cannot be written, and a write here would end the guest. So results are
 * written only to the page of the stack pointer, and, while the process has one thread (its tid is valid), to pages to
 * which the kernel has written one before; others are the kernel's to write. The host voids that knowledge when memory
 * is unmapped. Another thread could unmap it between the check and the write.
 */
#include "answers.h"
#include "barrier.h"
#include "compiler.h"
#include "guest.h"
#include "isa.h"
#include "latch.h"
#include "syscall.h"
#include "types.h"

/* The image's functions. */
#define EXPORTED(function) __asm__(FP_PREFIX function) __attribute__((visibility("default")))
int vdso_clock_gettime(fp_clockid id, struct fp_timespec *ts) EXPORTED("clock_gettime");
int vdso_gettimeofday(struct fp_timeval *tv, struct fp_timezone *tz) EXPORTED("gettimeofday");
int vdso_clock_getres(fp_clockid id, struct fp_timespec *resolution) EXPORTED("clock_getres");

/* What answers a call: a word (its index), or one of these. */
enum {
	BY_NOTHING = 0x80,
	BY_GETPGID,
	BY_GETSID,
	BY_SETFSUID,
	BY_SETFSGID,
	BY_GETRESUID,
	BY_GETRESGID,
	BY_CLOCK_GETTIME,
	BY_CLOCK_GETRES,
	BY_GETTIMEOFDAY,
	BY_GETRANDOM,
	BY_READ,
};

#define CALLS (FP_NR_getrandom + 1)

/* By the call's number, plus one: calls that are not named are 0. */
static const unsigned char answered_by[CALLS] = {
    [FP_NR_getpid] = 1 + FP_ANSWER_PID,
    [FP_NR_gettid] = 1 + FP_ANSWER_TID,
    [FP_NR_getppid] = 1 + FP_ANSWER_PPID,
#ifdef FP_NR_getpgrp
    [FP_NR_getpgrp] = 1 + FP_ANSWER_PGID,
#endif
    [FP_NR_getuid] = 1 + FP_ANSWER_UID,
    [FP_NR_geteuid] = 1 + FP_ANSWER_EUID,
    [FP_NR_getgid] = 1 + FP_ANSWER_GID,
    [FP_NR_getegid] = 1 + FP_ANSWER_EGID,
    [FP_NR_getpgid] = 1 + BY_GETPGID,
    [FP_NR_getsid] = 1 + BY_GETSID,
    [FP_NR_setfsuid] = 1 + BY_SETFSUID,
    [FP_NR_setfsgid] = 1 + BY_SETFSGID,
    [FP_NR_getresuid] = 1 + BY_GETRESUID,
    [FP_NR_getresgid] = 1 + BY_GETRESGID,
    [FP_NR_clock_gettime] = 1 + BY_CLOCK_GETTIME,
    [FP_NR_clock_getres] = 1 + BY_CLOCK_GETRES,
    [FP_NR_gettimeofday] = 1 + BY_GETTIMEOFDAY,
    [FP_NR_getrandom] = 1 + BY_GETRANDOM,
    [FP_NR_read] = 1 + BY_READ,
};

static const struct fp_answer no_answer;

FP_INLINE struct fp_answer answer(long result) { return (struct fp_answer){1, result}; }

FP_INLINE int is_valid(fp_u64 word) { return (fp_u32)(word >> 32) == ~(fp_u32)word; }

FP_INLINE struct fp_answer answer_word(unsigned index) {
	const fp_u64 word = fp_load(&fp_answers()->words[index]);

	return is_valid(word) ? answer((fp_u32)word) : no_answer;
}

/* A call of the guest. */
struct call {
	long a;
	long b;
	long c;
	unsigned long number;
	unsigned long sp;
	/* Whether system calls may be made for it. */
	int may_call;
};

FP_INLINE unsigned long first_page(struct fp_buffer buffer) { return buffer.at / FP_PAGE_SIZE; }
FP_INLINE unsigned long last_page(struct fp_buffer buffer) { return (buffer.at + buffer.size - 1) / FP_PAGE_SIZE; }

/* Page numbers have at most 45 bits. */
FP_INLINE fp_u64 known_as(unsigned long page, fp_u64 unmapped) { return page | unmapped << 45; }

FP_INLINE int is_known(unsigned long page, unsigned long sp) {
	if (page == (sp - 1) / FP_PAGE_SIZE)
		return 1;
	if (!page || !is_valid(fp_load(&fp_answers()->words[FP_ANSWER_TID])))
		return 0;
	return fp_load(&fp_ring()->known[page % FP_KNOWN]) == known_as(page, fp_load(&fp_answers()->unmapped));
}

static __attribute__((noinline)) int is_writable(struct fp_buffer buffer, unsigned long sp) {
	return is_known(first_page(buffer), sp) &&
	       (first_page(buffer) == last_page(buffer) || is_known(last_page(buffer), sp));
}

FP_INLINE void learn(unsigned long page, fp_u64 unmapped) {
	__atomic_store_n(&fp_ring()->known[page % FP_KNOWN], known_as(page, unmapped), __ATOMIC_RELAXED);
}

/* Makes the system call, and remembers that the kernel could write to the buffer. `unmapped` is read before the call:
 * what is unmapped during it is not known afterwards. */
static FP_COLD struct fp_answer ask_kernel(const struct call *call, struct fp_buffer buffer) {
	const fp_u64 unmapped = __atomic_load_n(&fp_answers()->unmapped, __ATOMIC_ACQUIRE);
	long result;

	if (!call->may_call)
		return no_answer;
	result = fp_syscall3(call->number, call->a, call->b, call->c);
	/* A read may be short, and has then not written to the last page. */
	if (result == 0 || (unsigned long)result == buffer.size) {
		learn(first_page(buffer), unmapped);
		learn(last_page(buffer), unmapped);
	}
	return answer(result);
}

FP_INLINE struct fp_answer clock_gettime(const struct call *call) {
	const struct fp_buffer buffer = {call->b, sizeof(struct fp_timespec)};
	struct fp_timespec *ts = (void *)call->b;
	struct fp_time time;

	if (!is_writable(buffer, call->sp))
		return ask_kernel(call, buffer);
	if (call->may_call)
		return answer(vdso_clock_gettime(call->a, ts));
	if (!fp_read_latch(call->a, &time))
		return no_answer;
	ts->tv_sec = time.sec;
	ts->tv_nsec = time.nsec;
	return answer(0);
}

static FP_COLD struct fp_answer gettimeofday(const struct call *call) {
	const struct fp_buffer buffer = {call->a, sizeof(struct fp_timeval)};
	struct fp_timeval *tv = (void *)call->a;
	struct fp_time time;

	/* Only the kernel has the time zone. */
	if (call->b)
		return no_answer;
	if (!is_writable(buffer, call->sp))
		return ask_kernel(call, buffer);
	if (call->may_call)
		return answer(vdso_gettimeofday(tv, 0));
	if (!fp_read_latch(FP_CLOCK_REALTIME, &time))
		return no_answer;
	tv->tv_sec = time.sec;
	tv->tv_usec = fp_to_usec(time.nsec);
	return answer(0);
}

static FP_COLD struct fp_answer clock_getres(const struct call *call) {
	const struct fp_buffer buffer = {call->b, sizeof(struct fp_timespec)};

	if (!call->may_call)
		return no_answer;
	if (call->b && !is_writable(buffer, call->sp))
		return ask_kernel(call, buffer);
	return answer(vdso_clock_getres(call->a, (void *)call->b));
}

/* getresuid and getresgid: three words, all of the same moment. */
static FP_COLD struct fp_answer answer_three(const struct call *call, unsigned first) {
	const struct fp_answers *answers = fp_answers();
	const fp_u64 changes = __atomic_load_n(&answers->changes, __ATOMIC_ACQUIRE);
	const unsigned long to[] = {call->a, call->b, call->c};
	fp_u64 words[3];

	for (unsigned i = 0; i < 3; i++) {
		const struct fp_buffer buffer = {to[i], sizeof(fp_u32)};

		words[i] = fp_load(&answers->words[first + i]);
		if (!is_valid(words[i]) || !is_writable(buffer, call->sp))
			return no_answer;
	}
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	if (fp_load(&answers->changes) != changes)
		return no_answer;
	for (unsigned i = 0; i < 3; i++)
		*(fp_u32 *)to[i] = words[i];
	return answer(0);
}

static struct fp_answer take_random(const struct call *call, struct fp_buffer buffer) {
	if (!(fp_load(&fp_answers()->flags) & FP_ANSWERS_RANDOM))
		return no_answer;
	if (buffer.size - 1 >= FP_RANDOM_MOST)
		return no_answer;
	if (!is_writable(buffer, call->sp))
		return ask_kernel(call, buffer);
	return fp_take_random(buffer, call->may_call) ? answer(buffer.size) : no_answer;
}

static struct fp_answer getrandom(const struct call *call) {
	enum { NONBLOCK = 1, INSECURE = 4 };

	if (call->c & ~(NONBLOCK | INSECURE))
		return no_answer;
	return take_random(call, (struct fp_buffer){call->a, call->b});
}

static struct fp_answer read(const struct call *call) {
	const unsigned descriptor = call->a;

	if (descriptor >= FP_DESCRIPTORS || !(fp_load(&fp_answers()->urandom[descriptor / 64]) >> descriptor % 64 & 1))
		return no_answer;
	return take_random(call, (struct fp_buffer){call->b, call->c});
}

FP_INLINE struct fp_answer answer_other(const struct call *call, unsigned by) {
	switch (by) {
	case BY_CLOCK_GETTIME:
		return clock_gettime(call);
	case BY_GETRANDOM:
		return getrandom(call);
	case BY_READ:
		return read(call);
	case BY_GETTIMEOFDAY:
		return gettimeofday(call);
	case BY_CLOCK_GETRES:
		return clock_getres(call);
	case BY_GETPGID:
		return (int)call->a ? no_answer : answer_word(FP_ANSWER_PGID);
	case BY_GETSID:
		return (int)call->a ? no_answer : answer_word(FP_ANSWER_SID);
	/* -1 is no id: the call changes nothing, and returns the present one. */
	case BY_SETFSUID:
		return (int)call->a == -1 ? answer_word(FP_ANSWER_FSUID) : no_answer;
	case BY_SETFSGID:
		return (int)call->a == -1 ? answer_word(FP_ANSWER_FSGID) : no_answer;
	case BY_GETRESUID:
		return answer_three(call, FP_ANSWER_UID);
	case BY_GETRESGID:
		return answer_three(call, FP_ANSWER_GID);
	default:
		return no_answer;
	}
}

/* What answers a call: as in `answered_by`, and above FP_ANSWERS for calls that no single word answers. */
FP_INLINE unsigned answered_by_what(unsigned long number) {
	return number < CALLS ? answered_by[number] - 1u : BY_NOTHING;
}

/* Away from the calls that one word answers, which need no memory. */
static __attribute__((noinline)) struct fp_answer answer_by(long a, long b, long c, unsigned long number,
							    unsigned long sp, int may_call) {
	const struct call call = {a, b, c, number, sp, may_call};

	return answer_other(&call, answered_by_what(number));
}

/* Called by __fastpath_syscall (ISA/entry.S). */
FP_INTERNAL struct fp_answer fp_answer_call(long a, long b, long c, unsigned long number, unsigned long sp);
struct fp_answer fp_answer_call(long a, long b, long c, unsigned long number, unsigned long sp) {
	const unsigned by = answered_by_what(number);

	if (fp_likely(by < FP_ANSWERS))
		return answer_word(by);
	return answer_by(a, b, c, number, sp, 1);
}

/* For hosts that translate or dispatch the guest's calls (fastpath.h): makes no system call. */
__attribute__((visibility("default"))) int __fastpath_answer(unsigned long number, const long arguments[6],
							     unsigned long sp, long *result);
int __fastpath_answer(unsigned long number, const long arguments[6], unsigned long sp, long *result) {
	const unsigned by = answered_by_what(number);
	struct fp_answer answer;

	answer = by < FP_ANSWERS ? answer_word(by) : answer_by(arguments[0], arguments[1], arguments[2], number, sp, 0);
	if (answer.is_answered)
		*result = answer.result;
	return answer.is_answered;
}
