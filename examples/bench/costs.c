/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * costs [--quick] [--require]: measures the cost of a guest's clock calls, on its vDSO and by the trapped system call,
 * in one run.
 *
 * A round times a batch of calls of each kind, one kind after the other; the order is reversed in every other round, so
 * that disturbances of the machine affect all kinds alike. Ratios are taken within a round. Prints the medians of all
 * rounds and the minima.
 *
 * A ratio to the trap depends on the trap's cost, so the limits are on the fast calls. --require: exit status 1 if one
 * is exceeded.
 */
#include "bench.h"
#include "cpu.h"
#include "own_vdso.h"
#include "trapping.h"

#include <stdio.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>

/* 2,000 reads take 40 us: long against the two reads of the counter around them, short against a scheduler's slice. */
enum { ROUNDS = 201, QUICK_ROUNDS = 21, FAST_CALLS = 2000, TRAPPED_CALLS = 20, WARM_UP = 20 };

enum kind { COUNTER, EMPTY, INSTRUCTION, DIRECT, WRAPPER, TRAP, KINDS };

/* The three signatures of the functions. */
typedef int clock_fn(clockid_t, struct timespec *);
typedef int day_fn(struct timeval *, void *);
typedef int cpu_fn(unsigned *, unsigned *, void *);

enum shape { CLOCK, DAY, CPU };

struct call {
	const char *name;
	const char *function; /* of the vDSO, without its prefix */
	enum shape shape;
	clockid_t id;
	int reads_counter;
};

static const struct call calls[] = {
    {"clock_gettime MONOTONIC", "clock_gettime", CLOCK, CLOCK_MONOTONIC, 1},
    {"clock_gettime REALTIME", "clock_gettime", CLOCK, CLOCK_REALTIME, 1},
    {"gettimeofday", "gettimeofday", DAY, 0, 1},
    {"clock_getres", "clock_getres", CLOCK, CLOCK_MONOTONIC, 0},
    {"getcpu", "getcpu", CPU, 0, 0},
};

enum { CALLS = sizeof(calls) / sizeof(calls[0]) };

/* Takes the clock calls' own arguments and does nothing. */
__attribute__((noinline)) static int empty_clock(clockid_t id, struct timespec *ts) {
	__asm__ volatile("" : : "r"(id), "r"(ts) : "memory");
	return 0;
}

__attribute__((noinline)) static int empty_day(struct timeval *tv, void *tz) {
	__asm__ volatile("" : : "r"(tv), "r"(tz) : "memory");
	return 0;
}

__attribute__((noinline)) static int empty_cpu(unsigned *cpu, unsigned *node, void *unused) {
	__asm__ volatile("" : : "r"(cpu), "r"(node), "r"(unused) : "memory");
	return 0;
}

static trapping_fn *trapping;

static int trapped_gettime(clockid_t id, struct timespec *ts) {
	return (int)trapping(SYS_clock_gettime, id, (long)ts, 0);
}
static int trapped_getres(clockid_t id, struct timespec *ts) {
	return (int)trapping(SYS_clock_getres, id, (long)ts, 0);
}
static int trapped_day(struct timeval *tv, void *tz) { return (int)trapping(SYS_gettimeofday, (long)tv, (long)tz, 0); }
static int trapped_cpu(unsigned *cpu, unsigned *node, void *unused) {
	return (int)trapping(SYS_getcpu, (long)cpu, (long)node, (long)unused);
}

/* musl has none. */
extern int getcpu(unsigned *, unsigned *) __attribute__((weak));

typedef void any_fn(void);

/* Returns the function for a call and a kind, or NULL if there is none. */
static any_fn *subject(const struct call *call, enum kind kind) {
	char name[64];

	snprintf(name, sizeof(name), VDSO_PREFIX "%s", call->function);
	switch (kind) {
	case EMPTY:
		return call->shape == CLOCK ? (any_fn *)empty_clock
		       : call->shape == DAY ? (any_fn *)empty_day
					    : (any_fn *)empty_cpu;
	case DIRECT:
		return (any_fn *)own_vdso_function(name);
	case WRAPPER:
		return call->shape == CPU    ? (any_fn *)getcpu
		       : call->shape == DAY  ? (any_fn *)gettimeofday
		       : call->reads_counter ? (any_fn *)clock_gettime
					     : (any_fn *)clock_getres;
	case TRAP:
		return call->shape == CPU    ? (any_fn *)trapped_cpu
		       : call->shape == DAY  ? (any_fn *)trapped_day
		       : call->reads_counter ? (any_fn *)trapped_gettime
					     : (any_fn *)trapped_getres;
	default:
		return NULL;
	}
}

static int there_is(const struct call *call, enum kind kind) {
	switch (kind) {
	case COUNTER:
		return call->reads_counter;
	case INSTRUCTION:
		return call->shape == CPU && HAS_CPU_NODE;
	default:
		return subject(call, kind) != NULL;
	}
}

/* The only loop for each signature, so that no kind has a better one. */
__attribute__((noinline)) static void repeat(const struct call *call, any_fn *function, unsigned times) {
	union {
		struct timespec ts;
		struct timeval tv;
		unsigned numbers[2];
	} out;

	switch (call->shape) {
	case CLOCK:
		while (times--)
			((clock_fn *)function)(call->id, &out.ts);
		break;
	case DAY:
		while (times--)
			((day_fn *)function)(&out.tv, NULL);
		break;
	case CPU:
		while (times--)
			((cpu_fn *)function)(&out.numbers[0], &out.numbers[1], NULL);
		break;
	}
}

/* Returns the counts that so many calls take. */
static double timed(const struct call *call, enum kind kind, unsigned times) {
	any_fn *function = subject(call, kind);
	const uint64_t start = read_counter();

	if (kind == COUNTER)
		repeat_counter(times);
	else if (kind == INSTRUCTION)
		repeat_cpu_node(times);
	else
		repeat(call, function, times);
	return (double)(read_counter() - start);
}

/* Returns the counts per call, after warming up what a trap has evicted from the caches. */
static double batch(const struct call *call, enum kind kind) {
	const unsigned times = kind == TRAP ? TRAPPED_CALLS : FAST_CALLS;

	timed(call, kind, WARM_UP);
	return timed(call, kind, times) / times;
}

struct rounds {
	int count;
	double counts[KINDS][ROUNDS];
};

static void measure(const struct call *call, struct rounds *rounds) {
	for (int round = 0; round < rounds->count; round++)
		for (int step = 0; step < KINDS; step++) {
			const int kind = round % 2 ? KINDS - 1 - step : step;

			if (there_is(call, (enum kind)kind))
				rounds->counts[kind][round] = batch(call, (enum kind)kind);
		}
}

/* Returns the median ratio of a kind's cost to `share` times another's, plus that of `more`, all from one round. */
static double ratio(const struct rounds *rounds, enum kind of, enum kind base, enum kind more, double share) {
	double ratios[ROUNDS];

	for (int i = 0; i < rounds->count; i++)
		ratios[i] = rounds->counts[of][i] /
			    (share * rounds->counts[base][i] + (more == KINDS ? 0 : rounds->counts[more][i]));
	return median_of(ratios, rounds->count);
}

static void print_costs(const struct call *call, const struct rounds *rounds, double ns) {
	printf("%-23s", call->name);
	for (int kind = 0; kind < KINDS; kind++) {
		if (there_is(call, (enum kind)kind))
			printf(" %8.1f %8.1f", median_of(rounds->counts[kind], rounds->count) * ns,
			       least_of(rounds->counts[kind], rounds->count) * ns);
		else
			printf(" %8s %8s", "-", "-");
	}
	putchar('\n');
}

/* Returns true if the limit is kept. */
static int print_bar(const char *what, double value, double bar) {
	printf("  %-48s %6.2fx  at most %.2fx  %s\n", what, value, bar, value <= bar ? "held" : "MISSED");
	return value <= bar;
}

/* Returns how many limits were exceeded. */
static int print_ratios(const struct call *call, const struct rounds *rounds) {
	const double trap = least_of(rounds->counts[TRAP], rounds->count);
	int missed = 0;

	/* The trap's minimum, because the tracer's waits for a CPU must not count. */
	printf("%-23s  trap / vDSO %.0fx", call->name, trap / median_of(rounds->counts[DIRECT], rounds->count));
	if (there_is(call, WRAPPER))
		printf(", trap / libc %.0fx", trap / median_of(rounds->counts[WRAPPER], rounds->count));
	putchar('\n');
	if (call->reads_counter)
		missed += !print_bar("vDSO / counter", ratio(rounds, DIRECT, COUNTER, KINDS, 1), 1.25);
	else if (there_is(call, INSTRUCTION))
		missed += !print_bar("vDSO / (1.5 empty calls + the CPU's instruction)",
				     ratio(rounds, DIRECT, EMPTY, INSTRUCTION, 1.5), 1);
	else
		missed += !print_bar("vDSO / empty call", ratio(rounds, DIRECT, EMPTY, KINDS, 1), 1.5);
	if (call->reads_counter)
		missed += !print_bar("libc / vDSO", ratio(rounds, WRAPPER, DIRECT, KINDS, 1), 1.12);
	else if (there_is(call, WRAPPER))
		printf("  %-48s %6.2fx\n", "libc / vDSO", ratio(rounds, WRAPPER, DIRECT, KINDS, 1));
	return missed;
}

int main(int argc, char **argv) {
	static struct rounds rounds[CALLS];
	struct scale started;
	double ns;
	int missed = 0;

	(void)argc;
	trapping = trapping_call();
	if (!trapping) {
		fprintf(stderr, "costs: there is no memory for the system calls to compare with\n");
		return 2;
	}
	stay_here();
	started = start_scale();
	for (int i = 0; i < CALLS; i++) {
		if (!there_is(&calls[i], DIRECT)) {
			fprintf(stderr, "costs: this process has no vDSO with %s: nothing to compare\n", calls[i].name);
			return 2;
		}
		rounds[i].count = has_option(argv, "--quick") ? QUICK_ROUNDS : ROUNDS;
		measure(&calls[i], &rounds[i]);
	}
	ns = ns_per_count(&started);
	printf("ns, median and least of %d rounds\n%-23s", rounds[0].count, "");
	for (int kind = 0; kind < KINDS; kind++) {
		static const char *const names[KINDS] = {"counter", "empty call", "instruction",
							 "vDSO",    "libc",       "trap"};

		printf(" %17s", names[kind]);
	}
	putchar('\n');
	for (int i = 0; i < CALLS; i++)
		print_costs(&calls[i], &rounds[i], ns);
	putchar('\n');
	for (int i = 0; i < CALLS; i++)
		missed += print_ratios(&calls[i], &rounds[i]);
	return missed && has_option(argv, "--require") ? 1 : 0;
}
