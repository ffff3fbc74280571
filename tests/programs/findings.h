/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Contradictions: a read below an earlier one, or one that does not lie between two others. */
#ifndef FINDINGS_H
#define FINDINGS_H

#include <stdatomic.h>
#include <time.h>

struct findings {
	unsigned long long reads, violations;
	long long worst_ns;
	/* The clock whose violation was the worst: its causes differ from clock to clock. */
	int worst_clock;
	/* When the first and the last were seen, by MONOTONIC: a fault at the start has a cause of its own. */
	long long first_ms, last_ms;
};

static inline long long findings_now_ms(void) {
	struct timespec now = {0};

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

static inline void violation(struct findings *findings, int clock, long long by_ns) {
	findings->last_ms = findings_now_ms();
	if (!findings->violations++) {
		findings->first_ms = findings->last_ms;
	}
	if (by_ns > findings->worst_ns) {
		findings->worst_ns = by_ns;
		findings->worst_clock = clock;
	}
}

static inline void add_findings(struct findings *sum, const struct findings *part) {
	if (part->violations && (!sum->violations || part->first_ms < sum->first_ms)) {
		sum->first_ms = part->first_ms;
	}
	if (part->last_ms > sum->last_ms) {
		sum->last_ms = part->last_ms;
	}
	sum->reads += part->reads;
	sum->violations += part->violations;
	if (part->worst_ns > sum->worst_ns) {
		sum->worst_ns = part->worst_ns;
		sum->worst_clock = part->worst_clock;
	}
}

/* Raises the latest time that any thread has read to `now_ns`. `seen_ns` is the value that was read before. */
static inline void pass_on(_Atomic long long *latest_ns, long long seen_ns, long long now_ns) {
	while (now_ns > seen_ns && !atomic_compare_exchange_weak_explicit(latest_ns, &seen_ns, now_ns,
									  memory_order_release, memory_order_relaxed)) {
	}
}

/* Returns how far a read lies outside of two others; zero or less if it lies between them. */
static inline long long outside_ns(long long before_ns, long long read_ns, long long after_ns) {
	return read_ns < before_ns ? before_ns - read_ns : read_ns - after_ns;
}

#endif
