/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Looks for a clock that contradicts itself, as hard as the machine allows.
 *
 *   torture [-s SECONDS] [-u] [-t THREADS] [-T TOLERANCE_NS] [-m MODE[,MODE]] [-c CLOCK[,CLOCK]]
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
 *
 * The error of `mixed` is libc's distance from the middle between its two system calls. A thread that loses its CPU
 * between them shows nothing, so only triples no wider than 1.5 times the median count. If entering a system call takes
 * longer than leaving one, or the reverse, that shows as error_p50_ns of every clock; hence the other percentiles are
 * distances from that median.
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
/* Histograms have one bin per nanosecond; the outer bins also count everything beyond. */
enum { MAX_ERROR_NS = 2000, ERROR_BINS = 2 * MAX_ERROR_NS + 1, MAX_WIDTH_NS = 20000 };
/* Triples whose width is recorded to find the median, before errors are counted. */
enum { WIDTH_SAMPLES = 10000 };

enum mode { SAME, CAUSAL, MIXED, MODES };

static const char *const mode_names[MODES] = {"same", "causal", "mixed"};

struct tally {
	struct findings findings;
	unsigned int widths[MAX_WIDTH_NS + 1];
	unsigned int errors[ERROR_BINS];
};

struct worker {
	_Alignas(128) pthread_t thread;
	struct tally tally;
};

static struct worker workers[MAX_THREADS];
static int threads = 2;
static long long tolerance_ns;
static const struct clock_name *clock_read;
static volatile sig_atomic_t is_over;
static _Alignas(128) atomic_int stop;
static _Alignas(128) _Atomic long long latest_ns;

static void read_same(struct tally *tally) {
	const int id = clock_read->id;
	long long last_ns = read_libc_ns(id);

	while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
		for (int i = 0; i < BATCH; i++) {
			long long now_ns = read_libc_ns(id);

			if (now_ns < last_ns) {
				violation(&tally->findings, last_ns - now_ns);
			}
			last_ns = now_ns;
		}
		tally->findings.reads += BATCH;
	}
}

static void read_causal(struct tally *tally) {
	const int id = clock_read->id;

	while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
		for (int i = 0; i < BATCH; i++) {
			long long seen_ns = atomic_load_explicit(&latest_ns, memory_order_acquire);
			long long now_ns = read_libc_ns(id);

			if (now_ns < seen_ns) {
				violation(&tally->findings, seen_ns - now_ns);
			}
			pass_on(&latest_ns, seen_ns, now_ns);
		}
		tally->findings.reads += BATCH;
	}
}

static long long clamp(long long value, long long low, long long high) {
	return value < low ? low : value > high ? high : value;
}

/* Returns the bin below which a `share` of the values in `bins` lies. */
static int quantile(const unsigned int *bins, int count, double share) {
	unsigned long long total = 0, below = 0;
	int i;

	for (i = 0; i < count; i++) {
		total += bins[i];
	}
	for (i = 0; i < count - 1; i++) {
		below += bins[i];
		if ((double)below >= share * (double)total) {
			break;
		}
	}
	return i;
}

static void read_mixed(struct tally *tally) {
	const int id = clock_read->id;
	unsigned long long triples = 0;
	long long widest_ns = 0;

	while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
		for (int i = 0; i < BATCH; i++) {
			long long before_ns = read_syscall_ns(id);
			long long libc_ns = read_libc_ns(id);
			long long after_ns = read_syscall_ns(id);
			long long width_ns = after_ns - before_ns;
			long long error_ns = libc_ns - before_ns - width_ns / 2;
			long long by_ns = outside_ns(before_ns, libc_ns, after_ns);

			if (by_ns > tolerance_ns) {
				violation(&tally->findings, by_ns);
			}
			if (triples++ < WIDTH_SAMPLES) {
				tally->widths[clamp(width_ns, 0, MAX_WIDTH_NS)]++;
			} else if (width_ns <= widest_ns) {
				tally->errors[clamp(error_ns, -MAX_ERROR_NS, MAX_ERROR_NS) + MAX_ERROR_NS]++;
			}
			if (triples == WIDTH_SAMPLES) {
				widest_ns = quantile(tally->widths, MAX_WIDTH_NS + 1, 0.5) * 3 / 2;
			}
		}
		tally->findings.reads += 3 * BATCH;
	}
}

static void *same_thread(void *tally) {
	read_same(tally);
	return NULL;
}

static void *causal_thread(void *tally) {
	read_causal(tally);
	return NULL;
}

static void *mixed_thread(void *tally) {
	read_mixed(tally);
	return NULL;
}

static void add(struct tally *sum, const struct tally *part) {
	add_findings(&sum->findings, &part->findings);
	for (int i = 0; i <= MAX_WIDTH_NS; i++) {
		sum->widths[i] += part->widths[i];
	}
	for (int i = 0; i < ERROR_BINS; i++) {
		sum->errors[i] += part->errors[i];
	}
}

static void run(enum mode mode, double seconds, struct tally *sum) {
	static void *(*const bodies[MODES])(void *) = {same_thread, causal_thread, mixed_thread};
	struct timespec pause = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};

	memset(sum, 0, sizeof(*sum));
	atomic_store(&stop, 0);
	atomic_store(&latest_ns, 0);
	for (int i = 0; i < threads; i++) {
		memset(&workers[i].tally, 0, sizeof(workers[i].tally));
		if (pthread_create(&workers[i].thread, NULL, bodies[mode], &workers[i].tally)) {
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
		add(sum, &workers[i].tally);
	}
}

static void print_errors(const struct tally *tally) {
	static unsigned int distances[2 * MAX_ERROR_NS + 1];
	int median = quantile(tally->errors, ERROR_BINS, 0.5);
	unsigned long long counted = 0;

	memset(distances, 0, sizeof(distances));
	for (int i = 0; i < ERROR_BINS; i++) {
		distances[abs(i - median)] += tally->errors[i];
		counted += tally->errors[i];
	}
	printf(",\"width_p50_ns\":%d,\"samples\":%llu", quantile(tally->widths, MAX_WIDTH_NS + 1, 0.5), counted);
	if (counted) {
		printf(",\"error_p50_ns\":%d,\"error_p99_ns\":%d,\"error_p999_ns\":%d,\"error_max_ns\":%d",
		       median - MAX_ERROR_NS, quantile(distances, ERROR_BINS, 0.99),
		       quantile(distances, ERROR_BINS, 0.999), quantile(distances, ERROR_BINS, 1.0));
	}
}

/* Stores the results of `find` for the words of a comma-separated list in `chosen`. A word for which it is negative,
 * or one word too many, ends the program. */
static int parse_list(char *list, int (*find)(const char *), int *chosen, int room) {
	int count = 0;

	for (char *word = strtok(list, ","); word; word = strtok(NULL, ",")) {
		int found = find(word);

		if (found < 0 || count == room) {
			fprintf(stderr, "torture: what is `%s`?\n", word);
			exit(2);
		}
		chosen[count++] = found;
	}
	return count;
}

static int find_mode(const char *name) {
	for (int i = 0; i < MODES; i++) {
		if (strcmp(mode_names[i], name) == 0) {
			return i;
		}
	}
	return -1;
}

static int find_clock_index(const char *name) {
	const struct clock_name *found = find_clock(name);

	return found && found->id < ID_GETTIMEOFDAY ? (int)(found - clock_names) : -1;
}

static void end(int signal) {
	(void)signal;
	is_over = 1;
}

/* Tests each clock in each mode for so long, and prints the line. Returns the number of violations. */
static unsigned long long round_of(const int *clocks, int clock_count, const int *modes, int mode_count,
				   double seconds) {
	static struct tally sum;
	unsigned long long reads = 0, violations = 0;

	printf("{\"threads\":%d,\"tolerance_ns\":%lld,\"clocks\":[", threads, tolerance_ns);
	for (int c = 0; c < clock_count; c++) {
		clock_read = &clock_names[clocks[c]];
		printf("%s{\"clock\":\"%s\"", c ? "," : "", clock_read->name);
		for (int m = 0; m < mode_count; m++) {
			run(modes[m], seconds, &sum);
			printf(",\"%s\":{\"reads\":%llu,\"violations\":%llu,\"worst_ns\":%lld", mode_names[modes[m]],
			       sum.findings.reads, sum.findings.violations, sum.findings.worst_ns);
			if (modes[m] == MIXED) {
				print_errors(&sum);
			}
			putchar('}');
			reads += sum.findings.reads;
			violations += sum.findings.violations;
		}
		putchar('}');
	}
	printf("],\"reads\":%llu,\"violations\":%llu}\n", reads, violations);
	fflush(stdout);
	return violations;
}

int main(int argc, char **argv) {
	int modes[MODES] = {SAME, CAUSAL, MIXED}, mode_count = MODES;
	int clocks[CLOCK_NAMES] = {0, 1, 2, 3, 4}, clock_count = HRES_CLOCKS;
	double seconds = 10;
	unsigned long long violations = 0;
	int option, until_signal = 0;

	while ((option = getopt(argc, argv, "s:ut:T:m:c:")) != -1) {
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
			mode_count = parse_list(optarg, find_mode, modes, MODES);
			break;
		case 'c':
			clock_count = parse_list(optarg, find_clock_index, clocks, CLOCK_NAMES);
			break;
		default:
			return 2;
		}
	}
	if (seconds <= 0 || threads < 1 || threads > MAX_THREADS || mode_count == 0 || clock_count == 0 ||
	    optind < argc) {
		fputs("usage: torture [-s SECONDS] [-u] [-t THREADS] [-T TOLERANCE_NS] [-m same,causal,mixed] [-c "
		      "CLOCK,...]\n",
		      stderr);
		return 2;
	}
	lock_machine_clock(LOCK_SH);
	seconds /= mode_count * clock_count;
	do {
		violations += round_of(clocks, clock_count, modes, mode_count, seconds);
	} while (until_signal && !is_over);
	return violations ? 1 : 0;
}
