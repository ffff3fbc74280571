/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Threads share the latest time that any of them has read of each clock: a later read must not be earlier. */
#include "findings.h"
#include "witness.h"

void *watch_order(void *tallies) {
	while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
		for (int c = 0; c < CLOCKS; c++) {
			unsigned int epoch = epoch_of(c);
			_Atomic long long *latest = latest_in(epoch, c);
			long long seen_ns = atomic_load_explicit(latest, memory_order_acquire);
			long long now_ns = read_ours_ns(c);

			if (!is_settled(epoch) || epoch != epoch_of(c)) {
				continue;
			}
			note(tallies, OURS_THEN_OURS, c, seen_ns - now_ns);
			pass_on(latest, seen_ns, now_ns);
		}
	}
	return NULL;
}
