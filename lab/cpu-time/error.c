/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Threads that are preempted, sleep, yield and migrate read their own clock between two answers of the kernel. A
 * watcher reads the same clocks by the kernel from outside.
 */
#include "cpu-time.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { WORKERS = 6, BINS = 4096, NARROW_NS = 2000 };

/* Reads that are out of order with a read of the kernel. */
struct disorder {
	uint64_t count, worst_ns, sum_ns;
};

struct worker {
	pthread_t thread;
	int index;
	enum detector detector;
	struct cpu_clock clock;
	uint64_t reads, narrow;
	struct disorder before, after, own, behind_watcher, ahead_of_watcher;
	uint64_t errors[BINS]; /* distance from the middle of two answers that are close together, 1 ns a bin */
	uint64_t published_ns; /* the latest read, for the watcher */
	uint64_t watched_ns;   /* the watcher's latest answer of the kernel */
	int is_ready;
};

static struct worker workers[2 * WORKERS];
static int is_over;

/* Notes if `first` is later than `second`. */
static void must_follow(struct disorder *disorder, uint64_t first_ns, uint64_t second_ns) {
	if (first_ns <= second_ns)
		return;
	disorder->count++;
	disorder->sum_ns += first_ns - second_ns;
	if (first_ns - second_ns > disorder->worst_ns)
		disorder->worst_ns = first_ns - second_ns;
}

static void check(struct worker *worker) {
	uint64_t watched = __atomic_load_n(&worker->watched_ns, __ATOMIC_ACQUIRE);
	uint64_t first = kernel_ns();
	uint64_t ours = cpu_clock_read(&worker->clock);
	uint64_t last = kernel_ns();

	__atomic_store_n(&worker->published_ns, ours, __ATOMIC_RELEASE);
	must_follow(&worker->before, first, ours);
	must_follow(&worker->after, ours, last);
	/* Each cause counts once. */
	if (ours > last)
		worker->clock.is_anchored = 0;
	must_follow(&worker->behind_watcher, watched, ours);
	worker->reads++;
	if (last - first < NARROW_NS) {
		uint64_t middle = first + (last - first) / 2;
		uint64_t error = ours > middle ? ours - middle : middle - ours;

		worker->narrow++;
		worker->errors[error < BINS ? error : BINS - 1]++;
	}
}

static void burst(struct worker *worker) {
	uint64_t last = cpu_clock_read(&worker->clock);

	for (int i = 0; i < 50; i++) {
		uint64_t now = cpu_clock_read(&worker->clock);

		must_follow(&worker->own, last, now);
		last = now;
	}
	worker->reads += 51;
}

static void disturb(const struct worker *worker, unsigned round) {
	cpu_set_t set;

	switch (worker->index % WORKERS) {
	case 0:
	case 1: /* preempted only */
		break;
	case 2:
		if (round % 16 == 0)
			usleep(50);
		break;
	case 3:
		if (round % 8 == 0)
			sched_yield();
		break;
	case 4:
		if (round % 64 == 0) {
			CPU_ZERO(&set);
			CPU_SET(round / 64 % (unsigned)sysconf(_SC_NPROCESSORS_ONLN), &set);
			sched_setaffinity(0, sizeof set, &set);
		}
		break;
	default:
		if (round % 1024 == 0)
			usleep(5000);
	}
}

static void *work(void *argument) {
	struct worker *worker = argument;

	if (cpu_clock_init(&worker->clock, worker->detector))
		die("the thread's clock");
	__atomic_store_n(&worker->is_ready, 1, __ATOMIC_RELEASE);
	for (unsigned round = 0; !__atomic_load_n(&is_over, __ATOMIC_RELAXED); round++) {
		check(worker);
		if (round % 4 == 0)
			burst(worker);
		disturb(worker, round);
	}
	return NULL;
}

static void watch(struct worker *worker, clockid_t id) {
	uint64_t published = __atomic_load_n(&worker->published_ns, __ATOMIC_ACQUIRE);
	struct timespec t;

	if (clock_gettime(id, &t))
		die("the kernel's clock of another thread");
	uint64_t now = (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;

	must_follow(&worker->ahead_of_watcher, published, now);
	__atomic_store_n(&worker->watched_ns, now, __ATOMIC_RELEASE);
}

static void add(struct disorder *sum, const struct disorder *part) {
	sum->count += part->count;
	sum->sum_ns += part->sum_ns;
	if (part->worst_ns > sum->worst_ns)
		sum->worst_ns = part->worst_ns;
}

static void print_disorder(const char *name, const struct disorder *disorder) {
	printf("  %-58s %8lu, by up to %lu ns, %lu us in all\n", name, (unsigned long)disorder->count,
	       (unsigned long)disorder->worst_ns, (unsigned long)disorder->sum_ns / 1000);
}

static void print_quantile(const struct worker *sum, double fraction) {
	uint64_t left = (uint64_t)((double)(sum->narrow - 1) * fraction), bin = 0;

	while (bin < BINS - 1 && left >= sum->errors[bin])
		left -= sum->errors[bin++];
	printf(" %lu ns in %g %%;", (unsigned long)bin, fraction * 100);
}

static void print_sum(enum detector detector) {
	struct worker sum = {0};

	for (int i = 0; i < 2 * WORKERS; i++) {
		const struct worker *worker = &workers[i];

		if (worker->detector != detector)
			continue;
		sum.reads += worker->reads;
		sum.narrow += worker->narrow;
		sum.clock.kernel_reads += worker->clock.kernel_reads;
		add(&sum.before, &worker->before);
		add(&sum.after, &worker->after);
		add(&sum.own, &worker->own);
		add(&sum.behind_watcher, &worker->behind_watcher);
		add(&sum.ahead_of_watcher, &worker->ahead_of_watcher);
		for (int bin = 0; bin < BINS; bin++)
			sum.errors[bin] += worker->errors[bin];
	}
	printf("%s: %lu reads, of which %.2f %% asked the kernel\n", detector == BY_EVENT ? "event" : "rseq",
	       (unsigned long)sum.reads, 100.0 * (double)sum.clock.kernel_reads / (double)sum.reads);
	print_disorder("earlier than the kernel's answer before it", &sum.before);
	print_disorder("later than the kernel's answer after it", &sum.after);
	print_disorder("earlier than the thread's own read before it", &sum.own);
	print_disorder("earlier than the kernel's answer to another thread", &sum.behind_watcher);
	print_disorder("later than a later answer to another thread", &sum.ahead_of_watcher);
	printf("  distance from the middle of two answers, of %lu, at most:", (unsigned long)sum.narrow);
	print_quantile(&sum, 0.5);
	print_quantile(&sum, 0.99);
	print_quantile(&sum, 0.9999);
	print_quantile(&sum, 1);
	puts("");
}

/* Returns the time that the host of this virtual machine has taken from its CPUs, in milliseconds (proc_stat(5)). */
static long stolen_ms(void) {
	FILE *file = fopen("/proc/stat", "r");
	long ticks = 0;

	if (!file || fscanf(file, "cpu %*s %*s %*s %*s %*s %*s %*s %ld", &ticks) != 1)
		die("/proc/stat");
	fclose(file);
	return ticks * 1000 / sysconf(_SC_CLK_TCK);
}

int error(int argc, char **argv) {
	uint64_t end = wall_ns() + (uint64_t)(argc > 2 ? atoi(argv[2]) : 10) * 1000000000;
	clockid_t ids[2 * WORKERS];
	long stolen = stolen_ms();

	for (int i = 0; i < 2 * WORKERS; i++) {
		workers[i].index = i;
		workers[i].detector = i < WORKERS ? BY_EVENT : BY_RSEQ;
		if (pthread_create(&workers[i].thread, NULL, work, &workers[i]))
			die("pthread_create");
		if (pthread_getcpuclockid(workers[i].thread, &ids[i]))
			die("pthread_getcpuclockid");
	}
	while (wall_ns() < end) {
		for (int i = 0; i < 2 * WORKERS; i++) {
			if (__atomic_load_n(&workers[i].is_ready, __ATOMIC_ACQUIRE))
				watch(&workers[i], ids[i]);
		}
	}
	__atomic_store_n(&is_over, 1, __ATOMIC_RELAXED);
	for (int i = 0; i < 2 * WORKERS; i++)
		pthread_join(workers[i].thread, NULL);
	print_sum(BY_EVENT);
	print_sum(BY_RSEQ);
	printf("stolen from the CPUs meanwhile: %ld ms\n", stolen_ms() - stolen);
	return 0;
}
