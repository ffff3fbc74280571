/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The clocks by name, and functions that read one by libc and by the system call. */
#ifndef CLOCKS_H
#define CLOCKS_H

#include <stddef.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* C libraries older than the kernel lack some of these names. */
enum { ID_REALTIME = 0, ID_MONOTONIC = 1, ID_MONOTONIC_RAW = 4, ID_REALTIME_COARSE = 5, ID_MONOTONIC_COARSE = 6 };
enum { ID_BOOTTIME = 7, ID_TAI = 11, ID_GETTIMEOFDAY = 1000, ID_TIME = 1001 };

struct clock_name {
	const char *name;
	int id;
};

/* The first HRES_CLOCKS are those that a counter answers. */
enum { HRES_CLOCKS = 5 };

static const struct clock_name clock_names[] = {
    {"REALTIME", ID_REALTIME},
    {"MONOTONIC", ID_MONOTONIC},
    {"MONOTONIC_RAW", ID_MONOTONIC_RAW},
    {"BOOTTIME", ID_BOOTTIME},
    {"TAI", ID_TAI},
    {"REALTIME_COARSE", ID_REALTIME_COARSE},
    {"MONOTONIC_COARSE", ID_MONOTONIC_COARSE},
    {"gettimeofday", ID_GETTIMEOFDAY},
    {"time", ID_TIME},
};

enum { CLOCK_NAMES = sizeof(clock_names) / sizeof(clock_names[0]) };

static inline const struct clock_name *find_clock(const char *name) {
	for (size_t i = 0; i < CLOCK_NAMES; i++) {
		if (strcmp(clock_names[i].name, name) == 0) {
			return &clock_names[i];
		}
	}
	return NULL;
}

static inline long long timespec_ns(struct timespec t) { return t.tv_sec * 1000000000LL + t.tv_nsec; }

/* Returns nanoseconds, or -1 if the clock cannot be read. */
static inline long long read_libc_ns(int id) {
	struct timespec t;
	struct timeval tv;

	switch (id) {
	case ID_GETTIMEOFDAY:
		return gettimeofday(&tv, NULL) ? -1 : tv.tv_sec * 1000000000LL + tv.tv_usec * 1000LL;
	case ID_TIME:
		return time(NULL) * 1000000000LL;
	default:
		return clock_gettime(id, &t) ? -1 : timespec_ns(t);
	}
}

static inline long long read_syscall_ns(int id) {
#ifdef SYS_clock_gettime64
	/* A 32-bit program, whose time_t may have either size. */
	long long t[2];

	return syscall(SYS_clock_gettime64, id, t) ? -1 : t[0] * 1000000000LL + t[1];
#else
	struct timespec t;

	return syscall(SYS_clock_gettime, id, &t) ? -1 : timespec_ns(t);
#endif
}

#endif
