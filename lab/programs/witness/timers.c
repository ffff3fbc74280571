/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Sets timers to a time of ours, and reads that clock when they return: a timer that returns before that time is
 * early. */
#include "witness.h"

#include <linux/futex.h>
#include <poll.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/timerfd.h>

static const int timer_clocks[] = {MONOTONIC, REALTIME};
static int timer_fds[CLOCKS];

static struct timespec as_timespec(long long ns) { return (struct timespec){ns / 1000000000, ns % 1000000000}; }

/* Each of these returns at `until_ns` of a clock. */

static void wait_timerfd(int clock, long long until_ns) {
	struct itimerspec once = {.it_value = as_timespec(until_ns)};
	uint64_t expirations;

	if (timerfd_settime(timer_fds[clock], TFD_TIMER_ABSTIME, &once, NULL) ||
	    read(timer_fds[clock], &expirations, sizeof(expirations)) != sizeof(expirations)) {
		fail("a timerfd");
	}
}

static void wait_nanosleep(int clock, long long until_ns) {
	struct timespec until = as_timespec(until_ns);

	clock_nanosleep(clock_ids[clock], TIMER_ABSTIME, &until, NULL);
}

static void wait_futex(int clock, long long until_ns) {
	static uint32_t word;
	struct timespec until = as_timespec(until_ns);
	int operation = FUTEX_WAIT_BITSET_PRIVATE | (clock == REALTIME ? FUTEX_CLOCK_REALTIME : 0);

	syscall(SYS_futex, &word, operation, 0, &until, NULL, FUTEX_BITSET_MATCH_ANY);
}

static void wait_ppoll(int clock, long long until_ns) {
	long long left_ns = until_ns - read_ours_ns(clock);
	struct timespec left = as_timespec(left_ns > 0 ? left_ns : 0);

	ppoll(NULL, 0, &left, NULL);
}

static void (*const waits[])(int clock, long long until_ns) = {wait_timerfd, wait_nanosleep, wait_futex, wait_ppoll};

void *watch_timers(void *tallies) {
	unsigned int round = 0;

	/* The kernel's default is to return up to 50 us late. */
	prctl(PR_SET_TIMERSLACK, 1);
	for (int i = 0; i < 2; i++) {
		timer_fds[timer_clocks[i]] = timerfd_create(clock_ids[timer_clocks[i]], TFD_CLOEXEC);
	}
	while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
		int clock = timer_clocks[round % 2];
		int wait = round / 2 % 4;
		long long until_ns;

		/* 0.1 to 1 ms. */
		round++;
		until_ns = read_ours_ns(clock) + 100000 + (long long)(round * 7919 % 900) * 1000;
		/* A timer may wait for hours when the clock is set back by hours. */
		if (clocks_set & 1U << clock) {
			continue;
		}
		waits[wait](clock, until_ns);
		note(tallies, TIMERFD + wait, clock, until_ns - read_ours_ns(clock));
	}
	return NULL;
}
