/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Reads each clock between two system calls: its time must lie between theirs. */
#include "findings.h"
#include "witness.h"

static void watch(struct tallies *tallies, int c) {
	unsigned int epoch = epoch_of(c);
	long long before_ns = read_kernel_ns(c);
	long long ours_ns = read_ours_ns(c);
	long long after_ns = read_kernel_ns(c);

	/* The clock was set in between, so the reads cannot be compared. */
	if (epoch != epoch_of(c) || epoch % PHASES == BEING_SET) {
		return;
	}
	if (is_settled(epoch)) {
		note(tallies, KERNEL_THEN_OURS, c, before_ns - ours_ns);
		note(tallies, OURS_THEN_KERNEL, c, ours_ns - after_ns);
	} else if (after_ns >= before_ns && outside_ns(before_ns, ours_ns, after_ns) > limit_ns(KERNEL_THEN_OURS)) {
		note_unseen_step(c, read_kernel_ns(MONOTONIC));
	}
}

void *watch_truth(void *tallies) {
	while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
		for (int c = 0; c < CLOCKS; c++) {
			watch(tallies, c);
		}
	}
	return NULL;
}
