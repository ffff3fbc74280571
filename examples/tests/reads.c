/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * reads [-T NS] [SECONDS]: compares libc's reads with the kernel's answers, in one process. Exits 1 after a line for
 * each broken promise. It uses nothing but libc, so that it can be built for every ISA and libc.
 *
 *   order    For each clock: system call, libc, system call, again and again; none may be below the one before it by
 *            more than NS, 0 unless said: the host knows the kernel's clock as well as it can sample it.
 *   ABI      Bad clock ids are EINVAL, NULL is taken where the kernel takes it, resolutions are the kernel's.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#ifndef CLOCK_TAI
#define CLOCK_TAI 11
#endif
/* musl's names on 32-bit ISAs. */
#ifndef SYS_clock_gettime
#define SYS_clock_gettime SYS_clock_gettime32
#define SYS_clock_getres SYS_clock_getres_time32
#endif

static const struct {
	const char *name;
	clockid_t id;
} clocks[] = {{"REALTIME", CLOCK_REALTIME},
	      {"MONOTONIC", CLOCK_MONOTONIC},
	      {"MONOTONIC_RAW", CLOCK_MONOTONIC_RAW},
	      {"REALTIME_COARSE", CLOCK_REALTIME_COARSE},
	      {"MONOTONIC_COARSE", CLOCK_MONOTONIC_COARSE},
	      {"BOOTTIME", CLOCK_BOOTTIME},
	      {"TAI", CLOCK_TAI}};

enum { CLOCKS = sizeof(clocks) / sizeof(clocks[0]), BATCH = 1000 };

static int broken;
static long long tolerance_ns;

static void expect(int kept, const char *clock, const char *promise) {
	if (!kept) {
		printf("broken: %s: %s\n", clock, promise);
		broken = 1;
	}
}

static long long ns(struct timespec t) { return t.tv_sec * 1000000000LL + t.tv_nsec; }

/* The kernel's struct timespec for the call that every ISA has: two longs. */
struct kernel_timespec {
	long sec, nsec;
};

static long long kernel_ns(clockid_t id) {
	struct kernel_timespec t;

	syscall(SYS_clock_gettime, id, &t);
	return t.sec * 1000000000LL + t.nsec;
}

static long long libc_ns(clockid_t id) {
	struct timespec t;

	clock_gettime(id, &t);
	return ns(t);
}

static void check_order(const char *name, clockid_t id, double seconds) {
	const long long end = kernel_ns(CLOCK_MONOTONIC) + (long long)(seconds * 1e9);
	unsigned long triples = 0;

	do {
		for (int i = 0; i < BATCH; i++) {
			long long before = kernel_ns(id), read = libc_ns(id), after = kernel_ns(id);

			if (before > read + tolerance_ns || read > after + tolerance_ns) {
				printf(
				    "broken: %s: system call %lld, libc %+lld, system call %+lld, after %lu in order\n",
				    name, before, read - before, after - before, triples);
				broken = 1;
				return;
			}
			triples++;
		}
	} while (kernel_ns(CLOCK_MONOTONIC) < end);
	printf("%s: %lu reads in order\n", name, triples);
}

static void check_resolution(const char *name, clockid_t id) {
	struct kernel_timespec kernel;
	struct timespec libc;

	expect(syscall(SYS_clock_getres, id, &kernel) == 0 && clock_getres(id, &libc) == 0, name, "has a resolution");
	expect(kernel.sec == (long)libc.tv_sec && kernel.nsec == libc.tv_nsec, name, "has the kernel's resolution");
	expect(clock_getres(id, NULL) == 0, name, "clock_getres takes NULL");
}

static void check_bad_ids(void) {
	/* Beyond the last; one without a meaning; beyond a set of 32 bits. */
	static const clockid_t bad[] = {12, 15, 31, 32, 33, 1000, INT_MAX};
	struct timespec t;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		char name[32];

		snprintf(name, sizeof(name), "clock %d", (int)bad[i]);
		errno = 0;
		expect(clock_gettime(bad[i], &t) == -1 && errno == EINVAL, name, "clock_gettime says EINVAL");
		errno = 0;
		expect(clock_getres(bad[i], &t) == -1 && errno == EINVAL, name, "clock_getres says EINVAL");
	}
	expect(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t) == 0 && ns(t) > 0, "PROCESS_CPUTIME",
	       "is the kernel's to answer");
	expect(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) == 0 && ns(t) > 0, "THREAD_CPUTIME",
	       "is the kernel's to answer");
}

static void check_day(void) {
	struct timeval tv = {0};
	long long before = kernel_ns(CLOCK_REALTIME), us;

	expect(gettimeofday(&tv, NULL) == 0, "gettimeofday", "takes NULL for the zone");
	us = tv.tv_sec * 1000000LL + tv.tv_usec;
	expect((before - tolerance_ns) / 1000 <= us && us <= (kernel_ns(CLOCK_REALTIME) + tolerance_ns) / 1000,
	       "gettimeofday", "lies between two system calls");
	expect(tv.tv_usec >= 0 && tv.tv_usec < 1000000, "gettimeofday", "has less than a million microseconds");
	expect(labs((long)(time(NULL) - tv.tv_sec)) <= 1, "time", "is the same second");
}

int main(int argc, char **argv) {
	double seconds = 3;

	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "-T") == 0 && i + 1 < argc) {
			tolerance_ns = atoll(argv[++i]);
		} else {
			seconds = atof(argv[i]);
		}
	}
	for (int i = 0; i < CLOCKS; i++) {
		check_order(clocks[i].name, clocks[i].id, seconds / CLOCKS);
		check_resolution(clocks[i].name, clocks[i].id);
	}
	check_bad_ids();
	check_day();
	return broken;
}
