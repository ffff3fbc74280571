/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * fastpath-clock: CLOCK_MONOTONIC and bounds of UTC by the CPU's counter, for programs that would otherwise read the
 * counter themselves.
 *
 * docs/clock.md is the guide. This file is all that a C program needs: it links no library, and works where fastpath
 * is not installed. Exactly one C file of a program (or of a shared library) contains the functions:
 *
 *     #define FASTPATH_CLOCK_IMPLEMENTATION
 *     #include <fastpath-clock.h>          before any other header
 *
 * With FASTPATH_CLOCK_PUBLISH defined too, fastpath_clock_open() can publish for this process alone. That needs
 * libfastpath and threads: cc ... $(pkg-config --cflags --libs libfastpath) -pthread
 *
 * Generated from the sources of the vDSO image, whose reader this is (hosts/libfastpath-clock/header.rs).
 */
#ifndef FASTPATH_CLOCK_H
#define FASTPATH_CLOCK_H

#if defined(FASTPATH_CLOCK_IMPLEMENTATION) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Where times come from. */
#define FASTPATH_CLOCK_KERNEL 0 /* the kernel's vDSO, or its system call */
#define FASTPATH_CLOCK_DAEMON 1 /* a page of fastpathd's */
#define FASTPATH_CLOCK_OWN 2    /* a page that a thread of this process publishes */

/* Publish in a thread of this process if no fastpathd gives a page, and the counter can be believed. The thread sleeps
 * (clock_nanosleep), reads the kernel's clocks and writes memory: do not use this flag if a seccomp filter that kills
 * for such calls is installed later for all threads. */
#define FASTPATH_CLOCK_MAY_PUBLISH 1u

/*
 * Finds a page: asks fastpathd for one (waits at most 2 seconds), else publishes if `flags` allow that. Returns the
 * source. Call it before the program starts threads, and installs seccomp filters: it makes system calls. If the source
 * is the kernel, it may be called again later; otherwise the page stays for the life of the process, and its children's
 * until they execute a program.
 */
int fastpath_clock_open(unsigned flags);

/* Why the counter is used for times, or is not. */
struct fastpath_clock_evidence {
	int source;      /* FASTPATH_CLOCK_* */
	int is_used;     /* whether the page answers at this moment; if not, the kernel does */
	uint32_t reason; /* why the publisher took its times off the page (fastpath_reason_string); 0: it did not */
	uint32_t comparisons;   /* comparisons of all CPUs' counters by fastpathd since it started */
	uint64_t within_cycles; /* bound on the distance of any two CPUs' counters in the last one; 0: unknown */
	uint64_t withdrawals;   /* how often times were taken off this page */
	int is_not_invariant;   /* whether the publisher was made to trust a counter without a guaranteed rate */
	int error;              /* without a page: the errno of `tried`, or 0 */
	const char *tried;      /* without a page: what was tried, or what is wrong; else NULL */
	const char *said;       /* without a page: what fastpathd answered, or ""; else NULL */
};
void fastpath_clock_evidence(struct fastpath_clock_evidence *evidence);

/* fastpath_clock_now() and fastpath_clock_now_unordered() as functions, for other languages. */
uint64_t fastpath_clock_read(void);
uint64_t fastpath_clock_read_unordered(void);

/* UTC, in nanoseconds since 1970 as CLOCK_REALTIME counts them. */
struct fastpath_clock_utc {
	uint64_t earliest_ns;
	uint64_t latest_ns;
};

/*
 * Stores between which times UTC is: CLOCK_REALTIME, less and plus the sum of
 *
 *     the error that the daemon which synchronizes the kernel's clock has stated (adjtimex(2), maxerror),
 *     500 ppm of the time since then, as the kernel has it grow, but also within a second,
 *     the page's distance from the kernel's clock when that was last read, at most 0.4 s ago,
 *     and for the time since then, the kernel's adjustment: some 20 ppm, 8 % while chronyd slews by ticks.
 *
 * The kernel's clock is between them too, unless a slew by ticks has just begun.
 *
 * Returns 1; or 0 where UTC is not known: the kernel's clock is not synchronized (STA_UNSYNC, or a maxerror of 16 s),
 * or adjtimex(2) failed. The bounds are then 0 and UINT64_MAX. They rely on the daemon's statement. Until a step of
 * CLOCK_REALTIME is noticed, they are those from before it.
 *
 * Ordered as fastpath_clock_now() is. By a page of fastpathd's, no system call is made. Where that has no bounds, and
 * without it, each call is one of adjtimex(2), for which a seccomp filter may kill.
 */
int fastpath_clock_now_bounded(struct fastpath_clock_utc *utc);

/* How the program's own reads of CLOCK_MONOTONIC, by clock_gettime(3), are answered. */
#define FASTPATH_CLOCK_PATH_NONE 0     /* by system calls: the process has no vDSO */
#define FASTPATH_CLOCK_PATH_SYSCALL 1  /* by system calls */
#define FASTPATH_CLOCK_PATH_VDSO 2     /* by the kernel's vDSO, or a sandbox's */
#define FASTPATH_CLOCK_PATH_FASTPATH 3 /* by fastpath */

struct fastpath_clock_check {
	int path;             /* FASTPATH_CLOCK_PATH_* */
	int is_slow;          /* 1: reads are slow; 0: they are not; -1: unknown */
	double read_ns;       /* cost of a read; 0: unknown: too coarse, or PR_SET_TSC forbids it */
	double syscall_ns;    /* cost of the system call clock_gettime; 0: unknown */
	double counter_reads; /* cost of a read in ordered reads of the CPU's counter; 0: unknown */
	char clocksource[32]; /* the kernel's, as /sys names it; "" if that cannot be read */
	const char *reason;   /* a stable word: fast, no-vdso, clocksource, not-used, unknown */
	char says[160];       /* a sentence for a log */
};

/*
 * Checks what a clock read costs in this process, for a warning when a program starts. Returns `is_slow`. Judges by
 * measurement, so it is right in virtual machines, containers and sandboxes, whatever the clocksource is called: a read
 * is slow if it costs half of a system call or more, and 2.5 reads of the counter.
 *
 * Takes 0.15 ms, and 1 ms where a read costs 1.3 us, no memory and no privilege, and asks no daemon. Call it before
 * seccomp filters are installed: it makes the calls clock_gettime and prctl, and reads files in /sys and /proc/self.
 */
int fastpath_clock_check(struct fastpath_clock_check *check);

#ifdef __cplusplus
}
#endif

#if defined(__cplusplus) || !defined(__linux__) || !(defined(__x86_64__) && defined(__LP64__) || defined(__aarch64__))

/* The reader is C, for ISAs whose programs fastpathd serves. */
static inline uint64_t fastpath_clock_now(void) { return fastpath_clock_read(); }
static inline uint64_t fastpath_clock_now_unordered(void) { return fastpath_clock_read(); }

#else
#define FASTPATH_CLOCK_READS_PAGES 1

#include "isa.h"
#include "latch.h"

/* The rest of fp_clock_read(). Later reads of the counter come after it. */
FP_HIDDEN uint64_t fp_clock_read_slowly(void);

FP_INLINE uint64_t fp_clock_read(enum fp_order order) {
	struct fp_time now;

	if (fp_likely(fp_read_newest(fp_hres(), FP_CLOCK_MONOTONIC, FP_BASE_MONOTONIC, order, &now)))
		return now.sec * FP_NSEC_PER_SEC + now.nsec;
	return fp_clock_read_slowly();
}

/*
 * Returns CLOCK_MONOTONIC in nanoseconds. Ordered: after all earlier loads of this thread. It never goes back, in a
 * thread or from one to another. No lock, no allocation, no system call but the kernel's clock_gettime where it has no
 * vDSO. May be called in a signal handler.
 */
FP_INLINE uint64_t fastpath_clock_now(void) { return fp_clock_read(FP_ORDERED); }

/*
 * Returns the same time, but the CPU may read its counter before earlier loads of this thread have finished: by less
 * than a microsecond, and never before an earlier call of either function. So times of one thread stay in order, and a
 * time may be before one that another thread has shown it.
 *
 * "Earlier call" holds as far as a CPU executes a thread's reads of its counter in their order. x86 CPUs do ("RDTSC
 * ... is guaranteed to return a monotonically increasing unique value whenever executed", Intel SDM volume 3). The Arm
 * architecture does not say so.
 */
FP_INLINE uint64_t fastpath_clock_now_unordered(void) { return fp_clock_read(FP_UNORDERED); }

#endif

#ifdef FASTPATH_CLOCK_IMPLEMENTATION
#include "implementation.h"
#endif

#endif
