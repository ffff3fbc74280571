/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Looks for a clock that contradicts itself, as hard as the machine allows.
 *
 *   torture [-s SECONDS] [-u] [-t THREADS] [-T TOLERANCE_NS] [-m MODE[,MODE]]
 *
 * same    Each thread reads again and again: no read may be below the one before it.
 *
 * causal  The threads share the latest time that any of them has read. A thread that takes it, then reads the clock,
 *         must not be below it.
 *
 * mixed   System call, libc, system call on one thread: libc must lie between the two, within the tolerance.
 *
 * All threads read all the time, in each mode for each clock in turn, for SECONDS altogether. Prints one line of JSON
 * and exits 1 if there was a violation. The time must not be set meanwhile: it holds the lock of the machine's clock.
 * With -u it repeats all of that until SIGTERM, and prints a line each time.
 */
#include "clock-lock.h"
#include "clocks.h"
#include "findings.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_THREADS = 64 };
/* Reads between two checks whether to stop. */
enum { BATCH = 256 };

enum mode { SAME, CAUSAL, MIXED, MODES };

static const char *const mode_names[MODES] = {"same", "causal", "mixed"};

struct worker {
	_Alignas(128) pthread_t thread;
	struct findings findings;
};

static struct worker workers[MAX_THREADS];
static int threads = 2;
static long long tolerance_ns;
static const struct clock_name *clock_read;
static volatile sig_atomic_t is_over;
static _Alignas(128) atomic_int stop;
static _Alignas(128) _Atomic long long latest_ns;

static void *read_same(void *argument) {
	struct findings *findings = argument;
	const int id = clock_read->id;
	long long last_ns = read_libc_ns(id);

	while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
		for (int i = 0; i < BATCH; i++) {
			long long now_ns = read_libc_ns(id);

			if (now_ns < last_ns) {
				violation(findings, id, last_ns - now_ns);
			}
			last_ns = now_ns;
		}
		findings->reads += BATCH;
	}
	return NULL;
}

static void *read_causal(void *argument) {
	struct findings *findings = argument;
	const int id = clock_read->id;

	while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
		for (int i = 0; i < BATCH; i++) {
			long long seen_ns = atomic_load_explicit(&latest_ns, memory_order_acquire);
			long long now_ns = read_libc_ns(id);

			if (now_ns < seen_ns) {
				violation(findings, id, seen_ns - now_ns);
			}
			pass_on(&latest_ns, seen_ns, now_ns);
		}
		findings->reads += BATCH;
	}
	return NULL;
}

static void *read_mixed(void *argument) {
	struct findings *findings = argument;
	const int id = clock_read->id;

	while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
		for (int i = 0; i < BATCH; i++) {
			long long before_ns = read_syscall_ns(id);
			long long libc_ns = read_libc_ns(id);
			long long after_ns = read_syscall_ns(id);
			long long by_ns = outside_ns(before_ns, libc_ns, after_ns);

			if (by_ns > tolerance_ns) {
				violation(findings, id, by_ns);
			}
		}
		findings->reads += 3 * BATCH;
	}
	return NULL;
}

static void run(enum mode mode, double seconds, struct findings *sum) {
	static void *(*const bodies[MODES])(void *) = {read_same, read_causal, read_mixed};
	struct timespec pause = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};

	memset(sum, 0, sizeof(*sum));
	atomic_store(&stop, 0);
	atomic_store(&latest_ns, 0);
	for (int i = 0; i < threads; i++) {
		memset(&workers[i].findings, 0, sizeof(workers[i].findings));
		if (pthread_create(&workers[i].thread, NULL, bodies[mode], &workers[i].findings)) {
			fputs("torture: cannot start a thread\n", stderr);
			exit(2);
		}
	}
	/* Sleeps by neither the clock under test nor another that fastpath serves. SIGTERM ends the sleep. */
	if (!is_over) {
		nanosleep(&pause, NULL);
	}
	atomic_store(&stop, 1);
	for (int i = 0; i < threads; i++) {
		pthread_join(workers[i].thread, NULL);
		add_findings(sum, &workers[i].findings);
	}
}

static int find_mode(const char *name) {
	for (int i = 0; i < MODES; i++) {
		if (strcmp(mode_names[i], name) == 0) {
			return i;
		}
	}
	fprintf(stderr, "torture: what is `%s`?\n", name);
	exit(2);
}

/* Stores the modes of a comma-separated list. */
static int parse_modes(char *list, int *chosen) {
	int count = 0;

	for (char *word = strtok(list, ","); word && count < MODES; word = strtok(NULL, ",")) {
		chosen[count++] = find_mode(word);
	}
	return count;
}

static void end(int signal) {
	(void)signal;
	is_over = 1;
}

/* Tests each clock in each mode for so long, and prints the line. Returns the number of violations. */
static unsigned long long round_of(const int *modes, int mode_count, double seconds) {
	static struct findings sum;
	unsigned long long reads = 0, violations = 0;

	printf("{\"threads\":%d,\"tolerance_ns\":%lld,\"clocks\":[", threads, tolerance_ns);
	for (int c = 0; c < HRES_CLOCKS; c++) {
		clock_read = &clock_names[c];
		printf("%s{\"clock\":\"%s\"", c ? "," : "", clock_read->name);
		for (int m = 0; m < mode_count; m++) {
			run(modes[m], seconds, &sum);
			printf(",\"%s\":{\"reads\":%llu,\"violations\":%llu,\"worst_ns\":%lld}", mode_names[modes[m]],
			       sum.reads, sum.violations, sum.worst_ns);
			reads += sum.reads;
			violations += sum.violations;
		}
		putchar('}');
	}
	printf("],\"reads\":%llu,\"violations\":%llu}\n", reads, violations);
	fflush(stdout);
	return violations;
}

int main(int argc, char **argv) {
	int modes[MODES] = {SAME, CAUSAL, MIXED}, mode_count = MODES;
	double seconds = 10;
	unsigned long long violations = 0;
	int option, until_signal = 0;

	while ((option = getopt(argc, argv, "s:ut:T:m:")) != -1) {
		switch (option) {
		case 's':
			seconds = atof(optarg);
			break;
		case 'u':
			until_signal = 1;
			signal(SIGTERM, end);
			break;
		case 't':
			threads = atoi(optarg);
			break;
		case 'T':
			tolerance_ns = atoll(optarg);
			break;
		case 'm':
			mode_count = parse_modes(optarg, modes);
			break;
		default:
			return 2;
		}
	}
	if (seconds <= 0 || threads < 1 || threads > MAX_THREADS || mode_count == 0 || optind < argc) {
		fputs("usage: torture [-s SECONDS] [-u] [-t THREADS] [-T TOLERANCE_NS] [-m same,causal,mixed]\n",
		      stderr);
		return 2;
	}
	lock_machine_clock(LOCK_SH);
	seconds /= mode_count * HRES_CLOCKS;
	do {
		violations += round_of(modes, mode_count, seconds);
	} while (until_signal && !is_over);
	return violations ? 1 : 0;
}
