/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The page: written by a publisher, read by the code in this folder.
 *
 * An anchor holds the clocks' times at one value of the counter, and their rate from there:
 *
 *     ns = ((counter - base_cycles) * mult + base[clock].nsec_shifted) >> shift
 *
 * while counter - base_cycles <= cap_cycles. base[clock].sec is added to the seconds. cap_cycles * mult and
 * nsec_shifted are each below 10^9 << shift, so the sum is below two seconds: the carry is one compare and subtract,
 * and nothing overflows 64 bits.
 *
 * A latch holds two anchors. copy[0] is the newest; copy[1] the one before it. A new anchor may be published before
 * the counter reaches its base: until then copy[1] answers. So all threads, and all pages of one publisher, change
 * from one anchor to the next at the same value of the counter, at which the two agree.
 *
 * An anchor's time at its cap is the latest time that any reader can have had from it. While the kernel runs slower
 * than the anchor (adjtimex(2)), that time is ahead of the kernel's. So a reader that asks the kernel returns the
 * later of the kernel's time and this floor. A withdrawal clears `clocks` and cuts the cap at the counter's value of
 * that moment; `floors` and the rest stay, so that the floor is what readers were shown.
 *
 * A reader that finds its clock's bit of `floors` clear returns "no floor" without a second look at seq. So the writer
 * stores `floors` once, from the old value to the new one: a bit that both have is never clear in between. A bit is
 * cleared only where the kernel's clock was set, or the newest anchor has no time of the clock.
 *
 * REALTIME's distance from UTC is at most utc_error_ns + ((counter - base_cycles) * utc_error_mult >> shift), by what
 * the kernel said of it (adjtimex(2), maxerror) when the anchor was made. The image does not read this;
 * fastpath-clock.h does. utc_error_mult is at most mult, so nothing overflows.
 *
 * copy[0].seq guards both copies (Linux convention: 0 is "never seeded", odd is "copy[0] is being written: use
 * copy[1]").
 *
 * The Rust side (core/page) has the same structs; the build asserts that every offset agrees.
 */
#ifndef FASTPATH_PAGE_H
#define FASTPATH_PAGE_H

typedef unsigned int fp_u32;
typedef unsigned long long fp_u64;

struct fp_base {
	fp_u64 sec;
	fp_u64 nsec_shifted;
};

/* The clocks that a page can answer: X(name, id, index into fp_anchor.base), by latch. core/page/src/clock.rs has the
 * same table. */
#define FP_HRES_CLOCKS(X) X(REALTIME, 0, 0) X(MONOTONIC, 1, 1) X(BOOTTIME, 7, 2) X(TAI, 11, 3)
#define FP_RAW_CLOCKS(X) X(MONOTONIC_RAW, 4, 0)

#define FP_CLOCK_ENTRY(name, id, base) FP_CLOCK_##name = id,
enum { FP_HRES_CLOCKS(FP_CLOCK_ENTRY) FP_RAW_CLOCKS(FP_CLOCK_ENTRY) };
#define FP_BASE_ENTRY(name, id, base) FP_BASE_##name = base,
enum { FP_HRES_CLOCKS(FP_BASE_ENTRY) };
#define FP_ONE_MORE(name, id, base) +1
enum { FP_BASES = 0 FP_HRES_CLOCKS(FP_ONE_MORE), FP_RAW_BASES = 0 FP_RAW_CLOCKS(FP_ONE_MORE) };

struct fp_anchor {
	fp_u32 seq;    /* of copy[0] only */
	fp_u32 clocks; /* bit per clock id that this anchor answers; 0: withdrawn */
	fp_u64 base_cycles;
	fp_u32 mult; /* nanoseconds per count, << shift */
	fp_u32 shift;
	fp_u32 cap_cycles;             /* max age in counts: an older anchor answers nothing */
	fp_u32 floors;                 /* bit per clock id that this anchor answers or has answered: see above */
	struct fp_base base[FP_BASES]; /* REALTIME and MONOTONIC share the first cache line with all of the above */
	fp_u32 by_cpu;                 /* in place of `clocks`, with FP_PAGE_OFFSETS */
	fp_u32 utc_error_mult;         /* what utc_error_ns grows by per count, << shift */
	fp_u64 utc_error_ns;           /* bound on the distance of REALTIME from UTC at base_cycles; 0: unknown */
	fp_u32 reserved2[4];
};

/*
 * A floor this far above the kernel's time is ignored: REALTIME or TAI was set back while no publisher ran (a leap
 * second does so by a second), or the page comes from elsewhere. A publisher's anchor is used for at most 0.4 s, all of
 * which the machine may have slept while its counter went on; and the kernel's rate changes by at most a fifth (ticks
 * of 9,000 to 11,000 us, adjtimex(2)): 80 ms.
 */
#define FP_FLOOR_LIMIT_NS (1u << 29)

struct fp_latch {
	struct fp_anchor copy[2];
};

#define FP_PAGE_MAGIC 0x6567617074736166ull /* "fastpage" */
#define FP_PAGE_ABI 1
struct fp_header {
	fp_u64 magic;         /* FP_PAGE_MAGIC */
	fp_u32 abi;           /* FP_PAGE_ABI: the version of this layout */
	fp_u32 size;          /* of struct fp_page */
	fp_u32 hres_res_ns;   /* clock_getres of the clocks with an anchor; 0: fall back to the kernel */
	fp_u32 coarse_res_ns; /* clock_getres of the COARSE clocks; 0: fall back to the kernel */
	fp_u32 flags;         /* FP_PAGE_* */
	fp_u32 cpu;           /* with FP_PAGE_ONE_CPU */
	fp_u32 node;          /* with FP_PAGE_ONE_CPU */
	fp_u32 clocks;        /* a bit per clock id that the page is kept for, for the next publisher; 0: unknown */
	fp_u64 keeper;        /* the daemon that keeps the page, for the next one of the same socket; 0: none */
	fp_u32 reserved[20];
};

/* The limit of the per-CPU segment holds (node << 12) | cpu, verified against getcpu(2) (x86-64). */
#define FP_PAGE_CPU_SEGMENT 1u
/* The page's readers see one CPU only, the header's: a hosted guest does. */
#define FP_PAGE_ONE_CPU 2u
/*
 * The CPUs' counters tick at one rate from different values (x86). Anchors are in the counts of one CPU, and a reader
 * subtracts the offset of its own. Their clocks are in `by_cpu` and not in `clocks`: the hot path does not find them
 * there, and all other pages are read as if there were no offsets.
 */
#define FP_PAGE_OFFSETS 4u

/* A withdrawal of anchors from the page. */
struct fp_withdrawal {
	fp_u64 boottime_ns; /* the kernel's CLOCK_BOOTTIME in the publisher's time namespace */
	fp_u64 ahead_ns;    /* two's complement: the anchor ahead of the kernel's MONOTONIC; 1 << 63: unknown */
	fp_u32 reason;      /* 0: this entry is being written */
	fp_u32 reserved;
};

#define FP_HISTORY 8

/* Statistics for `status` and `probe`; no reader on the hot path uses them. */
struct fp_stats {
	fp_u64 refreshes;
	fp_u64 residual_ns;        /* two's complement: last error against the kernel's clock before a refresh */
	fp_u32 publisher_pid;      /* in the publisher's PID namespace */
	fp_u32 withdrawn_reason;   /* 0: in force */
	fp_u64 withdrawals;        /* number so far; the last is history[(withdrawals - 1) % FP_HISTORY] */
	fp_u32 warp_tests;         /* comparisons of the CPUs' counters since the publisher started */
	fp_u32 watch_flags;        /* 1: invariance is not established: --trust-counter */
	fp_u64 warp_within_cycles; /* bound on the distance of any two CPUs in the last comparison; 0: there was none */
	struct fp_withdrawal history[FP_HISTORY];
	fp_u32 reserved[4];
};

/*
 * How far the counter of each CPU is ahead, in counts: (high << 32) + low, and so a signed number of 40 bits. Written
 * before the page's first anchor, and later only between a withdrawal and the next anchor. The offset of a CPU without
 * one, FP_NO_OFFSET in `high`, puts its readers minutes before any anchor, so the kernel answers them. A host whose
 * CPUs' numbers go beyond the table has no such page.
 */
#define FP_OFFSETS 512
#define FP_NO_OFFSET 127
struct fp_offsets {
	fp_u32 low[FP_OFFSETS];
	signed char high[FP_OFFSETS];
};

/*
 * Returns how far the counter of a CPU is ahead, from IA32_TSC_AUX, which RDTSCP reads together with the counter:
 * (node << 12) | cpu (arch/x86/kernel/cpu/common.c). Publishers compare it with getcpu(2).
 */
static inline __attribute__((always_inline)) fp_u64 fp_offset_of(const struct fp_offsets *offsets, fp_u32 aux) {
	const fp_u32 cpu = aux & (FP_OFFSETS - 1);

	return ((fp_u64)(long long)offsets->high[cpu] << 32) + offsets->low[cpu];
}

struct fp_page {
	struct fp_header header;
	struct fp_latch hres; /* REALTIME, MONOTONIC, BOOTTIME, TAI: one NTP-disciplined rate */
	struct fp_latch raw;  /* MONOTONIC_RAW */
	struct fp_stats stats;
	struct fp_offsets offsets; /* with FP_PAGE_OFFSETS */
};

#define FP_PAGE_SIZE 4096

#endif
