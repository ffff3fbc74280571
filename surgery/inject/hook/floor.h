/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Waits, before a program leaves its page, until the kernel's clock has reached what readers were shown
 * (core/image/vdso/page.h: the floor). For the hook and the preloaded library, by system calls only.
 */
#ifndef FASTPATH_FLOOR_H
#define FASTPATH_FLOOR_H

#include "isa.h"
#include "page.h"
#include "syscall.h"

#ifndef FP_NR_clock_gettime64
#define FP_NR_clock_gettime64 FP_NR_clock_gettime
#endif

/* Reads the counter in the counts of the anchors: core/image/vdso/page.h, FP_PAGE_OFFSETS. */
static inline fp_u64 fp_counter_of(const struct fp_page *page) {
#ifdef FP_HAS_CPU_NUMBER
	unsigned aux;

	if (page->header.flags & FP_PAGE_OFFSETS) {
		fp_u64 counter = __builtin_ia32_rdtscp(&aux);
		return counter - fp_offset_of(&page->offsets, aux);
	}
#endif
	(void)page;
	return fp_counter();
}

/* Returns 0 where the kernel does not answer. */
static inline long long fp_kernel_ns(int clock) {
	/* The kernel's struct for 64-bit seconds, on every ISA. */
	struct {
		long long sec;
		long long nsec;
	} now = {0, 0};

	fp_syscall4(FP_NR_clock_gettime64, clock, (long)&now, 0, 0);
	return now.sec * 1000000000 + now.nsec;
}

static inline int fp_has_floor(const struct fp_anchor *anchor, int clock) {
	return __atomic_load_n(&anchor->floors, __ATOMIC_RELAXED) >> clock & 1;
}

/* Returns the latest time that a reader can have had of a clock, as fp_read_latch() finds it (core/image/vdso/latch.c);
 * 0: none.
 */
static inline long long fp_floor_ns(const struct fp_page *page, int clock, unsigned base) {
	const struct fp_anchor *copy = page->hres.copy;
	long long floor_ns;
	fp_u32 seq;

	do {
		seq = __atomic_load_n(&copy[0].seq, __ATOMIC_ACQUIRE);
		const struct fp_anchor *anchor = &copy[seq & 1];
		if (!fp_has_floor(anchor, clock))
			return 0;
		const fp_u64 counter = fp_counter_of(page);
		fp_u64 age = counter - fp_load(&anchor->base_cycles);
		if (age >> 63 && !(seq & 1)) {
			/* The newest anchor is not in force yet. */
			anchor = &copy[1];
			age = counter - fp_load(&anchor->base_cycles);
			if (!fp_has_floor(anchor, clock))
				return 0;
		}
		const fp_u32 cap = __atomic_load_n(&anchor->cap_cycles, __ATOMIC_RELAXED);
		if (age > cap)
			age = age >> 63 ? 0 : cap;
		const fp_u64 ns_shifted = age * anchor->mult + fp_load(&anchor->base[base].nsec_shifted);
		floor_ns =
		    (long long)(fp_load(&anchor->base[base].sec) * 1000000000 + (ns_shifted >> (anchor->shift & 63)));
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
	} while (__atomic_load_n(&copy[0].seq, __ATOMIC_RELAXED) != seq);
	return floor_ns;
}

/*
 * Longest wait for what other threads, and handlers of signals, read meanwhile. A stopped publisher's anchor ends after
 * 400 ms, and was ahead by 33 ms at most (docs/counter.md). One that runs is level with the kernel again and again:
 * core/clock/tests/order.rs.
 */
#define FP_LONGEST_WAIT_NS 1000000000ll

/* Longest look that shows a page level with the kernel: in one that takes longer, the thread lost its CPU. */
#define FP_LONGEST_LOOK_NS 20000

/*
 * Waits until the kernel shows no less than this thread has read from the page; with `others`, until the page is level
 * with the kernel, so that no thread's next read is earlier than one before it. The clocks of the page tick at one
 * rate, so one of them stands for all: MONOTONIC if it is there, because others are set back.
 */
static inline void fp_await_kernel(const struct fp_page *page, int others) {
#define CLOCK_OF(name, id, base) [base] = (id),
	static const signed char clocks[FP_BASES] = {FP_HRES_CLOCKS(CLOCK_OF)};
	unsigned base = FP_BASE_MONOTONIC;
	long long floor_ns = 0, begun_ns = 0;
	fp_u32 word = 0;

	for (unsigned i = 0; i < FP_BASES && !floor_ns; i++) {
		base = i ^ FP_BASE_MONOTONIC;
		floor_ns = fp_floor_ns(page, clocks[base], base);
	}
	while (floor_ns) {
		const long long before_ns = others ? fp_kernel_ns(clocks[base]) : 0;
		if (others)
			floor_ns = fp_floor_ns(page, clocks[base], base);
		const long long kernel_ns = fp_kernel_ns(clocks[base]);
		const long long ahead_ns = floor_ns - kernel_ns;
		if (!begun_ns)
			begun_ns = before_ns;
		if (kernel_ns - begun_ns > FP_LONGEST_WAIT_NS)
			others = 0;
		if (ahead_ns >= FP_FLOOR_LIMIT_NS ||
		    (ahead_ns <= 0 && (!others || kernel_ns - before_ns < FP_LONGEST_LOOK_NS)))
			return;
		/* Nothing wakes it: this is a sleep by a system call that the hook makes anyway. FUTEX_WAIT is 0. */
		const long pause[2] = {0, ahead_ns > 0 ? (long)ahead_ns : 0};
		fp_syscall4(FP_NR_futex, (long)&word, 0, 0, (long)&pause);
	}
}

#endif
