/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "clock.h"

#include <errno.h>
#include <linux/perf_event.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/rseq.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
	PAGE = 4096,
	SHIFT = 24,
	/* Older answers of the kernel are not used: 1 ppm of the rate is 100 ns after this time. */
	MAX_AGE_NS = 100000000,
	/* Answers by which a thread learns how fast the kernel answers, before one is an anchor. */
	LEARNED = 16,
};

static uint64_t mult;           /* nanoseconds per count, << SHIFT */
static uint64_t max_age_cycles; /* age * mult fits 64 bits */

/*
 * A descriptor of a critical section that the thread is never in, for rseq_cs. The kernel requires the signature
 * before the address of the abort (rseq(2), RSEQ_SIG of glibc).
 */
__asm__(".pushsection .text\n"
	".long 0x53053053\n"
	"never_aborted: ud2\n"
	"never_entered: nop\n"
	".popsection\n");
extern const char never_aborted[], never_entered[];
static struct rseq_cs nowhere __attribute__((aligned(32)));

static volatile struct rseq *own_rseq(void) {
	return (volatile struct rseq *)((char *)__builtin_thread_pointer() + __rseq_offset);
}

/* Ordered on both sides. */
uint64_t read_counter(void) {
	uint32_t low, high;

	__asm__ volatile("lfence; rdtsc; lfence" : "=a"(low), "=d"(high)::"memory");
	return (uint64_t)high << 32 | low;
}

/* As read_counter(), but without the second fence: later loads may come some cycles before it. */
static inline uint64_t read_counter_early(void) {
	uint32_t low, high;

	__asm__ volatile("lfence; rdtsc" : "=a"(low), "=d"(high)::"memory");
	return (uint64_t)high << 32 | low;
}

uint64_t cycles_to_ns(uint64_t cycles) { return (uint64_t)((unsigned __int128)cycles * mult >> SHIFT); }

static uint64_t ns_by_syscall(clockid_t id) {
	struct timespec t;

	syscall(SYS_clock_gettime, id, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

uint64_t kernel_ns(void) { return ns_by_syscall(CLOCK_THREAD_CPUTIME_ID); }

/* The counter and the kernel's MONOTONIC_RAW at one moment: the best of some brackets. */
static uint64_t counter_at(uint64_t *raw_ns) {
	uint64_t narrowest = UINT64_MAX, middle = 0;

	for (int i = 0; i < 1000; i++) {
		uint64_t before = read_counter();
		uint64_t ns = ns_by_syscall(CLOCK_MONOTONIC_RAW);
		uint64_t width = read_counter() - before;

		if (width < narrowest) {
			narrowest = width;
			middle = before + width / 2;
			*raw_ns = ns;
		}
	}
	return middle;
}

void measure_rate(void) {
	uint64_t start_ns, end_ns, start, cycles;

	start = counter_at(&start_ns);
	usleep(200000);
	cycles = counter_at(&end_ns) - start;
	mult = ((end_ns - start_ns) << SHIFT) / cycles;
	max_age_cycles = ((uint64_t)MAX_AGE_NS << SHIFT) / mult;
	nowhere.start_ip = (uintptr_t)never_entered;
	nowhere.post_commit_offset = 1;
	nowhere.abort_ip = (uintptr_t)never_aborted;
}

volatile struct perf_event_mmap_page *map_event(void) {
	struct perf_event_attr attr = {
	    .size = sizeof attr,
	    .type = PERF_TYPE_SOFTWARE,
	    .config = PERF_COUNT_SW_TASK_CLOCK,
	    /* What perf_event_paranoid 2 requires. The event counts in the kernel too. */
	    .exclude_kernel = 1,
	    .exclude_hv = 1,
	};
	int fd = (int)syscall(SYS_perf_event_open, &attr, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
	void *page;

	if (fd < 0)
		return NULL;
	page = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0);
	int error = errno;

	/* The mapping keeps the event. */
	close(fd);
	errno = error;
	return page == MAP_FAILED ? NULL : page;
}

void unmap_event(volatile struct perf_event_mmap_page *page) { munmap((void *)page, PAGE); }

int cpu_clock_init(struct cpu_clock *clock, enum detector detector) {
	*clock = (struct cpu_clock){.detector = detector, .narrowest_cycles = UINT64_MAX};
	if (detector == BY_EVENT) {
		clock->page = map_event();
		return clock->page ? 0 : -1;
	}
	errno = ENOSYS;
	return __rseq_size ? 0 : -1;
}

void cpu_clock_end(struct cpu_clock *clock) {
	if (clock->detector == BY_EVENT)
		unmap_event(clock->page);
	else
		own_rseq()->rseq_cs = 0;
}

static inline int was_switched_out(const struct cpu_clock *clock) {
	if (clock->detector == BY_EVENT)
		return clock->page->lock != clock->seq;
	return own_rseq()->rseq_cs != (uintptr_t)&nowhere;
}

/* Returns the kernel's answer. It is an anchor if it took less than twice the shortest time so far. */
static __attribute__((noinline)) uint64_t ask_kernel(struct cpu_clock *clock) {
	uint64_t before, width, ns;

	if (clock->detector == BY_EVENT)
		clock->seq = clock->page->lock;
	else
		own_rseq()->rseq_cs = (uintptr_t)&nowhere;
	before = read_counter();
	ns = kernel_ns();
	width = read_counter() - before;
	clock->kernel_reads++;
	clock->narrowest_cycles = width < clock->narrowest_cycles ? width : clock->narrowest_cycles;
	clock->is_anchored =
	    clock->kernel_reads > LEARNED && width < 2 * clock->narrowest_cycles && !was_switched_out(clock);
	clock->base_ns = ns;
	clock->base_cycles = before + width / 2;
	return ns;
}

uint64_t cpu_clock_read(struct cpu_clock *clock) {
	if (clock->is_anchored) {
		uint64_t age_cycles = read_counter_early() - clock->base_cycles;

		if (age_cycles <= max_age_cycles && !was_switched_out(clock))
			return clock->base_ns + (age_cycles * mult >> SHIFT);
	}
	return ask_kernel(clock);
}
