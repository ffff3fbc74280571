/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * answers [--quick] [--require]: measures the cost of a guest's identities and random bytes: by the image's entry point
 * in place of a system call, by libc's function (whose call a host may have led to the image), and by the system call
 * that traps, in one run.
 *
 * A round times a batch of calls of each kind, one kind after the other; the order is reversed in every other round. A
 * batch of random bytes is small enough that most batches do not fill the ring; the mean contains the fills.
 * --require: exit status 1 if a limit is exceeded.
 */
#include "bench.h"
#include "cpu.h"
#include "jump.h"
#include "own_vdso.h"
#include "trapping.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { ROUNDS = MOST_ROUNDS, QUICK_ROUNDS = 41, CALLS_IN_BATCH = 50, TRAPPED_CALLS = 10, WARM_UP = 4 };

enum kind { COUNTER, EMPTY, ANSWER, LIBC, TRAP, KINDS };

static const char *const kind_names[KINDS] = {"counter", "empty call", "answer", "libc", "trap"};

struct call {
	const char *name;
	long number;
	long size; /* of random bytes; 0: an identity */
	double limit_ns;
};

static const struct call calls[] = {
    {"getpid", SYS_getpid, 0, 10},
    {"gettid", SYS_gettid, 0, 10},
    {"getuid", SYS_getuid, 0, 10},
    {"getppid", SYS_getppid, 0, 10},
    {"getrandom, 1 byte", SYS_getrandom, 1, 25},
    {"getrandom, 16 bytes", SYS_getrandom, 16, 40},
    {"read of urandom, 1 byte", SYS_read, 1, 25},
};

enum { CALLS = sizeof(calls) / sizeof(calls[0]) };

static trapping_fn *trapping;
static unsigned long entry;
static int urandom;
static unsigned char bytes[64];

__attribute__((noinline)) static long empty(long a, long b, long c) {
	__asm__ volatile("" : : "r"(a), "r"(b), "r"(c) : "memory");
	return 0;
}

static long by_libc(const struct call *call) {
	switch (call->number) {
	case SYS_getpid:
		return getpid();
	case SYS_gettid:
		return gettid();
	case SYS_getuid:
		return getuid();
	case SYS_getppid:
		return getppid();
	case SYS_getrandom:
		return getrandom(bytes, (size_t)call->size, 0);
	default:
		return read(urandom, bytes, (size_t)call->size);
	}
}

/* Returns the counts that so many calls take. */
static double timed(const struct call *call, enum kind kind, unsigned times) {
	const long buffer = (long)bytes;
	const long a = call->number == SYS_read ? urandom : call->size ? buffer : 0;
	const long b = call->number == SYS_read ? buffer : call->size;
	const long c = call->number == SYS_read ? call->size : 0;
	const uint64_t start = read_counter();

	switch (kind) {
	case COUNTER:
		repeat_counter(times);
		break;
	case EMPTY:
		while (times--)
			empty(a, b, c);
		break;
	case ANSWER:
		while (times--)
			jump_to_entry(entry, call->number, a, b, c);
		break;
	case LIBC:
		while (times--)
			by_libc(call);
		break;
	default:
		while (times--)
			trapping(call->number, a, b, c);
	}
	return (double)(read_counter() - start);
}

struct rounds {
	int count;
	double counts[KINDS][ROUNDS];
};

static void measure(const struct call *call, struct rounds *rounds) {
	for (int round = 0; round < rounds->count; round++)
		for (int step = 0; step < KINDS; step++) {
			const enum kind kind = (enum kind)(round % 2 ? KINDS - 1 - step : step);
			const unsigned times = kind == TRAP ? TRAPPED_CALLS : CALLS_IN_BATCH;

			timed(call, kind, WARM_UP);
			rounds->counts[kind][round] = timed(call, kind, times) / times;
		}
}

/* Finds the entry point, and makes the trapping code. */
static int prepare(void) {
	trapping = trapping_call();
	entry = (unsigned long)own_vdso_function("__fastpath_syscall");
	urandom = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
	if (!entry || !trapping || urandom < 0) {
		fprintf(stderr, "answers: this process has no image for hosts: run it under target/release/sandbox\n");
		return 0;
	}
	stay_here();
	return 1;
}

int main(int argc, char **argv) {
	static struct rounds rounds[CALLS];
	struct scale started;
	int missed = 0;
	double ns;

	(void)argc;
	if (!prepare())
		return 2;
	started = start_scale();
	for (int i = 0; i < CALLS; i++) {
		rounds[i].count = has_option(argv, "--quick") ? QUICK_ROUNDS : ROUNDS;
		measure(&calls[i], &rounds[i]);
	}
	ns = ns_per_count(&started);
	printf("ns, median of %d rounds, of the trap the least; (mean of the answer, with filling the ring)\n%-24s",
	       rounds[0].count, "");
	for (int kind = 0; kind < KINDS; kind++)
		printf(" %11s", kind_names[kind]);
	printf(" %9s %14s\n", "(mean)", "trap / answer");
	for (int i = 0; i < CALLS; i++) {
		double median[KINDS];

		printf("%-24s", calls[i].name);
		for (int kind = 0; kind < KINDS; kind++) {
			/* The tracer's waits for a CPU must not count. */
			median[kind] =
			    (kind == TRAP ? least_of : median_of)(rounds[i].counts[kind], rounds[i].count) * ns;
			printf(" %11.1f", median[kind]);
		}
		printf(" %9.1f %13.0fx", mean_of(rounds[i].counts[ANSWER], rounds[i].count) * ns,
		       median[TRAP] / median[ANSWER]);
		printf("  at most %.0f ns: %s\n", calls[i].limit_ns,
		       median[ANSWER] <= calls[i].limit_ns ? "held" : "MISSED");
		missed += median[ANSWER] > calls[i].limit_ns;
	}
	return missed && has_option(argv, "--require") ? 1 : 0;
}
