/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * CLOCK_THREAD_CPUTIME_ID from the CPU's counter, while the thread was not switched out. docs/design/cpu-time.md
 * describes the method.
 */
#ifndef CPU_TIME_CLOCK_H
#define CPU_TIME_CLOCK_H

#include <stdint.h>

/* How a thread learns that it was switched out. */
enum detector {
	/* The sequence of the mapped page of a task-clock event changes when the thread is switched in. */
	BY_EVENT,
	/* Before Linux 6.19, the kernel clears rseq_cs when it returns to a thread that was switched out. */
	BY_RSEQ,
};

/* The state of one thread. */
struct cpu_clock {
	enum detector detector;
	volatile struct perf_event_mmap_page *page; /* BY_EVENT */
	uint32_t seq;                               /* of the page, when the kernel was asked */
	int is_anchored;
	uint64_t base_ns; /* the kernel's answer */
	uint64_t base_cycles;
	uint64_t narrowest_cycles; /* the fastest of the kernel's answers */
	uint64_t kernel_reads;
};

/* Measures the counter's rate, for 200 ms. Called once, before all else. */
void measure_rate(void);

uint64_t read_counter(void);
uint64_t cycles_to_ns(uint64_t cycles);

/* The kernel's answer, by the system call. */
uint64_t kernel_ns(void);

/* Opens and maps a task-clock event of the calling thread. Returns NULL, with errno set, if the kernel refuses. */
volatile struct perf_event_mmap_page *map_event(void);
void unmap_event(volatile struct perf_event_mmap_page *page);

/* Prepares the calling thread's clock. Returns 0, or -1 with errno set. */
int cpu_clock_init(struct cpu_clock *clock, enum detector detector);
void cpu_clock_end(struct cpu_clock *clock);

uint64_t cpu_clock_read(struct cpu_clock *clock);

#endif
