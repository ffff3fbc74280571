/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Witnesses a clock while somebody sets it.
 *
 *   witness [-s SECONDS] [-u UPSET] [-f FOLLOW_MS] [-l LIMIT_NS] [-k] [-p]
 *
 * Two threads share the latest time that either has read of each clock that cannot be set; who takes it, then reads the
 * clock, must not be below it (`backward`). A third reads all clocks between two system calls: libc must lie between
 * them (`wrong`). Both give or take LIMIT_NS, which is for a slew that nobody is told of: who then has to ask the
 * kernel for once finds it behind (`back_within_limit`).
 *
 * UPSET is what a fourth thread, which must be root, does every half a second:
 *   none   nothing
 *   steps  sets REALTIME, by hours and by milliseconds, forth and back
 *   slews  has the kernel run 500 ppm fast, true, 500 ppm slow, true
 * A step is followed after a moment, not at once: what was seen in between is not wrong before FOLLOW_MS have passed,
 * and `followed_ms` says how long it was at most.
 *
 * -k judges the kernel by itself: system calls in the place of libc's. Prints one line of JSON; exits 1 if a read was
 * wrong or went back.
 */
#include "clocks.h"
#include "findings.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/timex.h>

enum { READERS = 2 };
/* Clocks that nobody can set come first. */
enum { SETTABLE_FROM = 3, CLOCKS = 5 };

static const int clocks[CLOCKS] = {ID_MONOTONIC, ID_MONOTONIC_RAW, ID_BOOTTIME, ID_REALTIME, ID_TAI};
static const char *const names[CLOCKS] = {"MONOTONIC", "MONOTONIC_RAW", "BOOTTIME", "REALTIME", "TAI"};

static long long follow_ns = 400 * 1000000LL;
static long long limit_ns;
static long long (*read_ns)(int) = read_libc_ns;

static atomic_int stop;
/* Odd while the time is being set. */
static atomic_uint settings;
static _Atomic long long set_at_ns;
static _Alignas(128) _Atomic long long latest_ns[SETTABLE_FROM];

struct reader {
	pthread_t thread;
	struct findings backward[SETTABLE_FROM];
	unsigned long long back_within_limit;
};

static struct reader readers[READERS];
static struct findings wrong[CLOCKS];
static long long followed_ns, off_ns;

static void *watch_order(void *arg) {
	struct reader *reader = arg;

	while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
		for (int c = 0; c < SETTABLE_FROM; c++) {
			struct findings *findings = &reader->backward[c];
			long long seen_ns = atomic_load_explicit(&latest_ns[c], memory_order_acquire);
			long long now_ns = read_ns(clocks[c]);

			findings->reads++;
			if (now_ns < seen_ns - limit_ns) {
				violation(findings, seen_ns - now_ns);
			} else if (now_ns < seen_ns) {
				reader->back_within_limit++;
			}
			pass_on(&latest_ns[c], seen_ns, now_ns);
		}
	}
	return NULL;
}

static void watch_truth(int c) {
	unsigned int setting = atomic_load(&settings);
	long long before_ns = read_syscall_ns(clocks[c]);
	long long libc_ns = read_ns(clocks[c]);
	long long after_ns = read_syscall_ns(clocks[c]);
	long long outside_ns = libc_ns < before_ns ? before_ns - libc_ns : libc_ns - after_ns;
	long long since_ns;

	/* Set in between: three reads of two times. */
	if (setting % 2 || setting != atomic_load(&settings)) {
		return;
	}
	wrong[c].reads++;
	if (outside_ns <= 0) {
		return;
	}
	since_ns = read_syscall_ns(ID_MONOTONIC) - atomic_load(&set_at_ns);
	if (c >= SETTABLE_FROM && setting != 0 && since_ns <= follow_ns) {
		followed_ns = since_ns > followed_ns ? since_ns : followed_ns;
		return;
	}
	off_ns = outside_ns > off_ns ? outside_ns : off_ns;
	if (outside_ns > limit_ns) {
		violation(&wrong[c], outside_ns);
	}
}

static void *watch_all_truth(void *unused) {
	while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
		for (int c = 0; c < CLOCKS; c++) {
			watch_truth(c);
		}
	}
	return unused;
}

static void fail(const char *what) {
	perror(what);
	exit(2);
}

static void step(long long by_ns) {
	struct timex timex = {.modes = ADJ_SETOFFSET | ADJ_NANO};

	timex.time.tv_sec = by_ns / 1000000000;
	timex.time.tv_usec = by_ns % 1000000000;
	if (timex.time.tv_usec < 0) {
		timex.time.tv_sec--;
		timex.time.tv_usec += 1000000000;
	}
	atomic_fetch_add(&settings, 1);
	if (adjtimex(&timex) < 0) {
		fail("adjtimex ADJ_SETOFFSET");
	}
	atomic_store(&set_at_ns, read_syscall_ns(ID_MONOTONIC));
	atomic_fetch_add(&settings, 1);
}

static void set_frequency(long ppm) {
	/* adjtimex(2): in units of 2^-16 ppm. */
	struct timex timex = {.modes = ADJ_FREQUENCY, .freq = ppm * 65536};

	if (adjtimex(&timex) < 0) {
		fail("adjtimex ADJ_FREQUENCY");
	}
}

static unsigned int upset_steps(unsigned int turn) {
	static const long long steps_ns[] = {3 * 3600000000000LL,  1000000,  -1000000,
					     -3 * 3600000000000LL, -1000000, 1000000};

	step(steps_ns[turn % (sizeof(steps_ns) / sizeof(steps_ns[0]))]);
	return turn + 1;
}

static unsigned int upset_slews(unsigned int turn) {
	static const long ppm[] = {500, 0, -500, 0};

	set_frequency(ppm[turn % 4]);
	return turn + 1;
}

static unsigned int upset_none(unsigned int turn) { return turn; }

static unsigned int (*find_upset(const char *name))(unsigned int) {
	return strcmp(name, "none") == 0    ? upset_none
	       : strcmp(name, "steps") == 0 ? upset_steps
	       : strcmp(name, "slews") == 0 ? upset_slews
					    : NULL;
}

/* The cheapest of some rounds, by the kernel's clock. */
static double price_ns(void) {
	double cheapest_ns = 1e9;

	for (int round = 0; round < 20; round++) {
		long long start_ns = read_syscall_ns(ID_MONOTONIC);

		for (int i = 0; i < 1000; i++) {
			read_ns(ID_MONOTONIC);
		}
		double each_ns = (double)(read_syscall_ns(ID_MONOTONIC) - start_ns) / 1000;

		cheapest_ns = each_ns < cheapest_ns ? each_ns : cheapest_ns;
	}
	return cheapest_ns;
}

static void print(const char *name, const struct findings *findings, int count) {
	struct findings sum = {0};

	for (int i = 0; i < count; i++) {
		add_findings(&sum, &findings[i]);
	}
	printf("\"%s\":{\"reads\":%llu,\"violations\":%llu,\"worst_ns\":%lld", name, sum.reads, sum.violations,
	       sum.worst_ns);
	for (int i = 0; i < count; i++) {
		if (findings[i].violations) {
			printf(",\"%s\":%llu", names[i % CLOCKS], findings[i].violations);
		}
	}
	printf("},");
}

static int usage(void) {
	fputs("usage: witness [-s SECONDS] [-u none|steps|slews] [-f FOLLOW_MS] [-l LIMIT_NS] [-k] [-p]\n", stderr);
	return 2;
}

int main(int argc, char **argv) {
	unsigned int (*upset)(unsigned int) = upset_none;
	static struct findings backward[SETTABLE_FROM];
	unsigned long long violations = 0, back_within_limit = 0;
	const struct timespec half_a_second = {0, 500000000};
	unsigned int upsets = 0;
	pthread_t truth;
	int seconds = 10, priced = 0, option;
	double before_ns;

	while ((option = getopt(argc, argv, "s:u:f:l:kp")) != -1) {
		switch (option) {
		case 's':
			seconds = atoi(optarg);
			break;
		case 'u':
			upset = find_upset(optarg);
			break;
		case 'f':
			follow_ns = atoll(optarg) * 1000000;
			break;
		case 'l':
			limit_ns = atoll(optarg);
			break;
		case 'k':
			read_ns = read_syscall_ns;
			break;
		case 'p':
			priced = 1;
			break;
		default:
			return usage();
		}
	}
	if (seconds < 1 || !upset || optind < argc) {
		return usage();
	}
	before_ns = priced ? price_ns() : 0;
	for (int i = 0; i < READERS; i++) {
		if (pthread_create(&readers[i].thread, NULL, watch_order, &readers[i])) {
			fail("a thread");
		}
	}
	if (pthread_create(&truth, NULL, watch_all_truth, NULL)) {
		fail("a thread");
	}
	/* Not by a clock under test: the kernel sleeps by its own. */
	for (int i = 0; i < 2 * seconds; i++) {
		nanosleep(&half_a_second, NULL);
		upsets = upset(upsets);
	}
	if (upset == upset_slews) {
		set_frequency(0);
	}
	atomic_store(&stop, 1);
	pthread_join(truth, NULL);
	for (int i = 0; i < READERS; i++) {
		pthread_join(readers[i].thread, NULL);
		for (int c = 0; c < SETTABLE_FROM; c++) {
			add_findings(&backward[c], &readers[i].backward[c]);
			violations += readers[i].backward[c].violations;
		}
		back_within_limit += readers[i].back_within_limit;
	}
	for (int c = 0; c < CLOCKS; c++) {
		violations += wrong[c].violations;
	}
	putchar('{');
	print("backward", backward, SETTABLE_FROM);
	print("wrong", wrong, CLOCKS);
	if (priced) {
		printf("\"before_ns\":%.1f,\"after_ns\":%.1f,", before_ns, price_ns());
	}
	printf("\"back_within_limit\":%llu,\"upsets\":%u,\"off_ns\":%lld,\"followed_ms\":%.1f,\"violations\":%llu}\n",
	       back_within_limit, upsets, off_ns, (double)followed_ns / 1e6, violations);
	return violations ? 1 : 0;
}
