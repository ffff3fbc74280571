/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Threads that read clocks, and one that must not lose its registers. */
#include "attached.h"

#include <sched.h>
#include <stdint.h>

/* Reads in one turn. */
enum { BATCH = 128 };
/* Clocks that cannot be set, and REALTIME and TAI, which are not set while this runs. */
static const int ordered[] = {ID_MONOTONIC, ID_MONOTONIC_RAW, ID_BOOTTIME, ID_REALTIME, ID_TAI};
enum { ORDERED = sizeof(ordered) / sizeof(ordered[0]) };

static _Alignas(128) _Atomic long long latest_ns[ORDERED];

static void order_of(struct findings *findings, int which, long long (*read_ns)(int)) {
	long long seen_ns = atomic_load_explicit(&latest_ns[which], memory_order_acquire);
	long long now_ns = read_ns(ordered[which]);

	findings->reads++;
	if (now_ns < seen_ns) {
		violation(findings, ordered[which], seen_ns - now_ns);
	}
	pass_on(&latest_ns[which], seen_ns, now_ns);
}

/* Compares a read with the latest one of any thread: by libc, and by the system call, in turns. */
static void look_at_order(struct findings *findings, int turns) {
	for (int i = 0; i < turns; i++) {
		order_of(findings, i % ORDERED, i % 3 == 2 ? read_syscall_ns : read_libc_ns);
	}
}

/* Returns how far libc's answer is outside of two system calls, the first of them rounded down to `grain_ns`:
 * gettimeofday has microseconds, and time() has the second of the last tick, as the COARSE clocks have the tick. */
static long long between(int id, int call, long long grain_ns) {
	long long before_ns = read_syscall_ns(call);
	long long libc_ns = read_libc_ns(id);
	long long after_ns = read_syscall_ns(call);

	return outside_ns(before_ns - before_ns % grain_ns, libc_ns, after_ns);
}

static void look_at_truth(struct findings *findings) {
	static const struct {
		int id, call;
		long long grain_ns;
	} clocks[] = {
	    {ID_MONOTONIC, ID_MONOTONIC, 1},
	    {ID_REALTIME, ID_REALTIME, 1},
	    {ID_BOOTTIME, ID_BOOTTIME, 1},
	    {ID_TAI, ID_TAI, 1},
	    {ID_MONOTONIC_RAW, ID_MONOTONIC_RAW, 1},
	    {ID_MONOTONIC_COARSE, ID_MONOTONIC_COARSE, 1},
	    {ID_REALTIME_COARSE, ID_REALTIME_COARSE, 1},
	    {ID_GETTIMEOFDAY, ID_REALTIME, 1000},
	    {ID_TIME, ID_REALTIME_COARSE, 1000000000},
	};

	for (size_t i = 0; i < sizeof(clocks) / sizeof(clocks[0]); i++) {
		long long by_ns = between(clocks[i].id, clocks[i].call, clocks[i].grain_ns);

		findings->reads++;
		if (by_ns > 0) {
			violation(findings, clocks[i].id, by_ns);
		}
	}
}

void look_once(struct findings *findings) {
	look_at_order(findings, ORDERED);
	look_at_truth(findings);
}

void read_in_order(struct thread *thread) {
	look_at_order(&thread->order, BATCH);
	sleep_ns(2000000 + random_below(thread, 2000000));
}

/* Reads for half of the time, so that a stop often finds it in the vDSO. */
void read_hot(struct thread *thread) {
	look_at_order(&thread->order, 8 * BATCH);
	sleep_ns(200000);
}

void read_truth(struct thread *thread) {
	struct timespec resolution;

	for (int i = 0; i < BATCH / 8; i++) {
		look_at_truth(&thread->truth);
	}
	if (clock_getres(CLOCK_MONOTONIC, &resolution) || resolution.tv_sec || resolution.tv_nsec < 1) {
		odd(thread, ODD_RESULT, "clock_getres", resolution.tv_nsec);
	}
	if (sched_getcpu() < 0) {
		odd(thread, ODD_RESULT, "sched_getcpu", errno);
	}
	sleep_ns(2000000 + random_below(thread, 2000000));
}

/* Calculates with integers and fractions, more than registers can hold, with a clock read at intervals. */
static uint64_t digest(uint64_t seed) {
	uint64_t a = seed, b = seed ^ 0x9e3779b97f4a7c15, c = ~seed, d = seed << 7, e = 3, f = 5, g = 7, h = 11;
	double p = 1.5, q = 2.5, r = 3.5, s = 4.5, t = 5.5, u = 6.5, v = 7.5, w = 8.5;

	for (int i = 0; i < 20000; i++) {
		a += b ^ e, b = b << 13 | b >> 51, c ^= a * 5, d += c >> 3;
		e += a ^ f, f = f << 7 | f >> 57, g ^= d, h += g | 1;
		p = p * 0.75 + q, q = q * 0.5 + r, r = r * 0.25 + s, s = s * 0.125 + t;
		t = t * 0.75 + u, u = u * 0.5 + v, v = v * 0.25 + w, w = w * 0.125 + 1.0;
	}
	return a ^ b ^ c ^ d ^ e ^ f ^ g ^ h ^ (uint64_t)((p + q + r + s + t + u + v + w) * 1e9);
}

void compute(struct thread *thread) {
	uint64_t first = digest((uint64_t)thread->number);

	if (thread->kept == 0) {
		thread->kept = (long long)first;
	} else if (thread->kept != (long long)first) {
		odd(thread, LOST_REGISTERS, "a calculation", (long long)first);
	}
	sleep_ns(4000000);
}
