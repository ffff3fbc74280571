/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* What `--log` reports: counted by all processes, in memory that they share. */
#ifndef DISPATCH_LOG_H
#define DISPATCH_LOG_H

#include <stdint.h>

enum counter { PROGRAMS, TRAPS, LED_SITES, COUNTERS };

extern uint64_t *counters;

static inline void count(enum counter counter, uint64_t more) {
	if (counters)
		__atomic_fetch_add(&counters[counter], more, __ATOMIC_RELAXED);
}

#endif
