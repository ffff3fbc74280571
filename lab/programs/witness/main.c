/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Judges the clocks while they are set and slewed.
 *
 *   witness [-s SECONDS] [-u UPSET [-e US]] [-x HOW] [-l RELATION=NS[@PERCENT]]... [-f FOLLOW_MS] [-k] [-p]
 *           [-n [COMMAND...]]
 *
 * Threads read each clock by libc, and compare with earlier and later times: other reads of the same kind, by any
 * thread (`ours_then_ours`); the kernel's, by system call, before and after (`kernel_then_ours`, `ours_then_kernel`);
 * timers set to a time of ours that have returned (`timerfd`, `clock_nanosleep`, `futex`, `ppoll`); `coarse` clocks,
 * `time()`, a file's `mtime`. tally.h describes each relation.
 *
 * -l  Limit of a relation: how far its reads may be off, by default not at all; with a percentage, how far so many of
 *     each clock's reads. At most two for each relation; `timers` means four of them, `reads` the others but
 *     `ours_then_ours`, `all` both. The kernel does not report that it is slewed, so a publisher notices it later
 *     than a read does.
 *
 * -u  UPSET that a thread applies meanwhile, defined in upsets.c: none, steps, hours, settime, tai, frequency, single,
 *     tick, fast, slow, pll, leap, asleep, hibernating, hibernated, clocksource. All but `none` require root and take
 *     the machine's lock; the clock is restored whatever happens to this process.
 *
 * -e  Error that adjtimex(2) states after each change, in microseconds, as the daemon does that made the change.
 *
 * -x  HOW this process's publisher is kept from its work, defined in starve.c: stops, quota, hog, kill.
 *
 * -f  Time for which a step may stay unseen before a read that misses it counts as wrong (`followed` is the actual
 *     time).
 *
 * -n  Goes on in a child in another time namespace, or executes there the command that follows.
 *
 * -k  Judges the kernel itself: system calls instead of libc's. It must find nothing.
 *
 * -p  Measures what a read costs before and after.
 *
 * Its threads have a low priority (nice), so that a publisher gets a CPU when it wakes; -x is for the opposite.
 *
 * Prints one line of JSON. Exits 1 if there were violations that the limits do not allow, 2 if it could not work.
 */
#include "clock-lock.h"
#include "witness.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

struct watcher {
	void *(*watch)(void *tallies);
	pthread_t thread;
	struct tallies tallies;
};

/* Two of the first: they compare their reads with each other. */
static struct watcher watchers[] = {
    {.watch = watch_order},  {.watch = watch_order},  {.watch = watch_truth},
    {.watch = watch_timers}, {.watch = watch_stamps},
};

enum { WATCHERS = sizeof(watchers) / sizeof(watchers[0]) };

static void *start_watch(void *watcher) {
	struct watcher *self = watcher;

	/* The priority is per thread on Linux. */
	setpriority(PRIO_PROCESS, 0, 5);
	return self->watch(&self->tallies);
}

/* Returns the minimum of some rounds, by the kernel's clock. */
static double cost_ns(void) {
	double cheapest_ns = 1e9;

	for (int round = 0; round < 20; round++) {
		long long start_ns = read_kernel_ns(MONOTONIC_RAW);

		for (int i = 0; i < 1000; i++) {
			read_ours_ns(MONOTONIC);
		}
		double each_ns = (double)(read_kernel_ns(MONOTONIC_RAW) - start_ns) / 1000;

		cheapest_ns = each_ns < cheapest_ns ? each_ns : cheapest_ns;
	}
	return cheapest_ns;
}

static int usage(void) {
	fputs("usage: witness [-s SECONDS] [-u UPSET] [-x HOW] [-l RELATION=NS[@PERCENT]]... [-f FOLLOW_MS] [-k] [-p] "
	      "[-n [COMMAND...]]\n",
	      stderr);
	return 2;
}

/* Adds up the absolute slew of MONOTONIC from any cause, in steps of some milliseconds. */
static void add_slew(double *slewed_ns) {
	static long long last_ns;
	long long now_ns = read_kernel_ns(MONOTONIC) - read_kernel_ns(MONOTONIC_RAW);

	if (last_ns) {
		*slewed_ns += now_ns > last_ns ? (double)(now_ns - last_ns) : (double)(last_ns - now_ns);
	}
	last_ns = now_ns;
}

/* Upsets the clock for that time, and returns how often. */
static unsigned int upset_for(const struct upset *upset, int seconds, struct tallies *tallies, double *slewed_ns) {
	/* MONOTONIC_RAW is independent of the other clocks. */
	long long end_ns = read_kernel_ns(MONOTONIC_RAW) + seconds * 1000000000LL;
	unsigned int turns = 0;

	while (read_kernel_ns(MONOTONIC_RAW) < end_ns) {
		unsigned int ms = upset->turn(turns++, tallies);
		long long until_ns = read_kernel_ns(MONOTONIC_RAW) + ms * 1000000LL;

		until_ns = until_ns < end_ns ? until_ns : end_ns;
		while (read_kernel_ns(MONOTONIC_RAW) < until_ns) {
			nanosleep(&(struct timespec){0, 20000000}, NULL);
			add_slew(slewed_ns);
		}
	}
	return turns;
}

int main(int argc, char **argv) {
	const struct upset *upset = find_upset("none");
	const char *starving = NULL;
	static struct tallies sum;
	int seconds = 10, measures_cost = 0, is_inside = 0, option;
	unsigned long long violations;
	unsigned int upsets;
	double before_ns, slewed_ns = 0;

	while ((option = getopt(argc, argv, "+s:u:e:x:l:f:kpn")) != -1) {
		switch (option) {
		case 's':
			seconds = atoi(optarg);
			break;
		case 'u':
			upset = find_upset(optarg);
			break;
		case 'e':
			stated_us = atol(optarg);
			break;
		case 'x':
			starving = optarg;
			break;
		case 'l':
			if (!add_limit(optarg)) {
				return usage();
			}
			break;
		case 'f':
			set_follow_ms(atoll(optarg));
			break;
		case 'n':
			is_inside = 1;
			break;
		case 'k':
			judges_kernel = 1;
			break;
		case 'p':
			measures_cost = 1;
			break;
		default:
			return usage();
		}
	}
	if (seconds < 1 || !upset || (optind < argc && !is_inside)) {
		return usage();
	}
	if (is_inside) {
		enter_namespace(argv + optind);
	}
	clocks_set = upset->clocks_set;
	if (upset == find_upset("none")) {
		lock_machine_clock(LOCK_SH);
	} else if (lock_machine_clock(LOCK_EX) < 0) {
		fail("the lock of the machine's clock, " CLOCK_LOCK);
	} else {
		start_guardian(upset->slews_on);
	}
	if (starving && !start_starving(starving)) {
		return usage();
	}
	before_ns = measures_cost ? cost_ns() : 0;
	for (int i = 0; i < WATCHERS; i++) {
		if (pthread_create(&watchers[i].thread, NULL, start_watch, &watchers[i])) {
			fail("a thread");
		}
	}
	upsets = upset_for(upset, seconds, &sum, &slewed_ns);
	atomic_store(&stop, 1);
	for (int i = 0; i < WATCHERS; i++) {
		pthread_join(watchers[i].thread, NULL);
		add_tallies(&sum, &watchers[i].tallies);
	}
	putchar('{');
	violations = print_tallies(&sum);
	if (measures_cost) {
		printf("\"before_ns\":%.1f,\"after_ns\":%.1f,", before_ns, cost_ns());
	}
	if (starving) {
		printf("\"starved\":%s,", has_starved() ? "true" : "false");
	}
	if (upset == find_upset("leap")) {
		printf("\"leaps\":%u,", leaps);
	}
	printf("\"upsets\":%u,\"slewed_ms\":%.1f,\"violations\":%llu}\n", upsets, slewed_ns / 1e6, violations);
	end_guardian();
	end_starving();
	return violations ? 1 : 0;
}
