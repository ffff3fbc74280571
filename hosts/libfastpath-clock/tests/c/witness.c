/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Reads the clock of fastpath-clock.h, in steps that the arguments name, and compares each read with the latest that
 * any thread or process of this program has had, and many with the kernel's clock before and after.
 *
 *     open=N    opens the clock; the source must be N (FASTPATH_CLOCK_*); `open` takes any
 *     page      reads until the page answers
 *     kernel    reads until the kernel answers
 *     threads   reads ten million times, in four threads; `threads=S` reads for S seconds, in one more than the CPUs
 *     fork      does the next steps in a child
 *     orphan    does the next steps in a child that outlives this process, and so its publisher
 *     filter    from now on, a system call for a lock, a socket or memory kills
 *     bounds=MS reads bounds of UTC for two seconds; the kernel's time may be outside of them for so long, after a step
 *     cost      prints the cost of a read, and that of others as often in turn: the median of many rounds
 *     check     prints how the kernel's clock is read, and whether that is slow
 *     check-    the same while PR_SET_TSC forbids the counter
 *     pause     prints `paused`, and waits for a line
 */
#ifndef FASTPATH_CLOCK_IMPLEMENTATION
#define FASTPATH_CLOCK_IMPLEMENTATION
#endif
#include <fastpath-clock.h>

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* More than a page that follows a slew of 500 ppm can be off in its longest life, 0.4 s. */
#define TOLERANCE 1000000u
/* Seconds after which a process ends that waits for a page in vain. */
#define TIMEOUT 200
static uint64_t *latest; /* in memory that children share */

static uint64_t by_kernel(void) {
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void fail(const char *what, uint64_t a, uint64_t b) {
	fprintf(stderr, "%s: %llu, %llu\n", what, (unsigned long long)a, (unsigned long long)b);
	exit(1);
}

static void read_once(void) {
	static __thread uint64_t last;
	const uint64_t before = fastpath_clock_now_unordered();
	uint64_t shown = __atomic_load_n(latest, __ATOMIC_SEQ_CST);
	const uint64_t now = fastpath_clock_now();
	const uint64_t after = fastpath_clock_now_unordered();

	if (now < shown)
		fail("a time before one that was shown", now, shown);
	if (before < last || now < before || after < now)
		fail("an unordered time before an earlier one of its thread", before, after);
	last = after;
	while (shown < now && !__atomic_compare_exchange_n(latest, &shown, now, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
		;
}

static void read_many(int reads) {
	for (int i = 0; i < reads; i++) {
		read_once();
		if (i % 64)
			continue;
		uint64_t before = by_kernel(), now = fastpath_clock_now(), after = by_kernel();
		if (now + TOLERANCE < before)
			fail("before the kernel's time", now, before);
		if (now > after + TOLERANCE)
			fail("after the kernel's time", now, after);
	}
}

static uint64_t realtime(void) {
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void read_bounds(uint64_t most_outside_ns) {
	const uint64_t begun = by_kernel();
	uint64_t reads = 0, bounded = 0, outside = 0, inside_at = begun, now = begun;

	for (; now - begun < 2000000000; reads++) {
		struct fastpath_clock_utc utc;
		const uint64_t before = realtime();
		const int is_bounded = fastpath_clock_now_bounded(&utc);
		const uint64_t after = realtime();

		now = by_kernel();
		bounded += is_bounded;
		if (!is_bounded && (utc.earliest_ns || utc.latest_ns != UINT64_MAX))
			fail("bounds of an unknown time", utc.earliest_ns, utc.latest_ns);
		/* A step between the two reads leaves nothing to compare. */
		if (after < before || (utc.earliest_ns <= after && before <= utc.latest_ns)) {
			inside_at = now;
			continue;
		}
		outside++;
		if (now - inside_at > most_outside_ns)
			fail("the kernel's time is outside of the bounds", before - utc.earliest_ns,
			     utc.latest_ns - after);
	}
	printf("bounds: %llu of %llu reads, the kernel's time outside in %llu\n", (unsigned long long)bounded,
	       (unsigned long long)reads, (unsigned long long)outside);
	fflush(stdout);
}

static void read_until(int is_used) {
	struct fastpath_clock_evidence evidence;

	do {
		read_many(1000);
		fastpath_clock_evidence(&evidence);
	} while (evidence.is_used != is_used);
}

/* The kernel's time until which threads read; 0: as often as `threads` says. */
static uint64_t until_ns;

static void *read_in_thread(void *unused) {
	for (int i = 0; until_ns ? by_kernel() < until_ns : i < 100; i++)
		read_many(25000);
	return unused;
}

static void read_in_threads(uint64_t seconds) {
	const long count = seconds ? sysconf(_SC_NPROCESSORS_ONLN) + 1 : 4;
	pthread_t thread[64];

	until_ns = seconds ? by_kernel() + seconds * 1000000000 : 0;
	for (long i = 0; i < count && i < 64; i++)
		if (pthread_create(&thread[i], NULL, read_in_thread, NULL))
			fail("pthread_create", 0, 0);
	for (long i = 0; i < count && i < 64; i++)
		pthread_join(thread[i], NULL);
}

/* Continues in a child, and ends as it does, or at once. */
static void go_on_in_child(int is_orphan) {
	int status = 0;
	pid_t child = fork();

	if (!child) {
		alarm(TIMEOUT);
		return;
	}
	if (is_orphan)
		_exit(0);
	waitpid(child, &status, 0);
	exit(status != 0);
}

static void kill_for_calls(void) {
#define KILLS_FOR(call)                                                                                                \
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##call, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)
	struct sock_filter code[] = {
	    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
	    KILLS_FOR(socket),
	    KILLS_FOR(futex),
	    KILLS_FOR(mmap),
	    KILLS_FOR(brk),
	    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {sizeof(code) / sizeof(code[0]), code};

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		fail("seccomp", (uint64_t)errno, 0);
}

/* A read of the counter and a multiplication: what a program does that knows the rate, and believes it. */
static inline uint64_t by_bare_counter(int is_ordered) {
#ifdef __x86_64__
	uint32_t low, high;

	if (is_ordered)
		__asm__ volatile("lfence" : : : "memory");
	__asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
	return (((uint64_t)high << 32 | low) * 1234567) >> 21;
#elif defined(__aarch64__)
	uint64_t counter;

	if (is_ordered)
		__asm__ volatile("isb" : : : "memory");
	__asm__ volatile("mrs %0, cntvct_el0" : "=r"(counter));
	return counter * 1234567 >> 21;
#else
	(void)is_ordered;
	return by_kernel();
#endif
}

static inline uint64_t bounded(void) {
	struct fastpath_clock_utc utc;

	fastpath_clock_now_bounded(&utc);
	return utc.earliest_ns;
}

enum { NOW, UNORDERED, BOUNDED, BARE, BARE_UNORDERED, KERNEL, KINDS };
#define ROUNDS 1001
static uint64_t costs[KINDS][ROUNDS];

/* Stores the cost of a read in picoseconds. */
#define MEASURE(kind, read)                                                                                            \
	do {                                                                                                           \
		const uint64_t begun = by_kernel();                                                                    \
		uint64_t sum = 0;                                                                                      \
		for (int i = 0; i < 10000; i++)                                                                        \
			sum += read;                                                                                   \
		__asm__ volatile("" : : "r"(&sum) : "memory");                                                         \
		costs[kind][round] = (by_kernel() - begun) / 10;                                                       \
	} while (0)

static int compare(const void *a, const void *b) {
	const uint64_t *left = a, *right = b;

	return (*left > *right) - (*left < *right);
}

static double median_ns(int kind) {
	qsort(costs[kind], ROUNDS, sizeof(costs[kind][0]), compare);
	return (double)costs[kind][ROUNDS / 2] / 1000;
}

static void print_cost(void) {
	double ns[KINDS];

	for (int round = 0; round < ROUNDS; round++) {
		MEASURE(NOW, fastpath_clock_now());
		MEASURE(UNORDERED, fastpath_clock_now_unordered());
		MEASURE(BOUNDED, bounded());
		MEASURE(BARE, by_bare_counter(1));
		MEASURE(BARE_UNORDERED, by_bare_counter(0));
		MEASURE(KERNEL, by_kernel());
	}
	for (int kind = 0; kind < KINDS; kind++)
		ns[kind] = median_ns(kind);
	printf("now: %.1f ns; / bare ordered counter: %.2f; / clock_gettime: %.2f\n", ns[NOW], ns[NOW] / ns[BARE],
	       ns[NOW] / ns[KERNEL]);
	printf("unordered: %.1f ns; / bare counter: %.2f\n", ns[UNORDERED], ns[UNORDERED] / ns[BARE_UNORDERED]);
	printf("bounded: %.1f ns; / now: %.2f\n", ns[BOUNDED], ns[BOUNDED] / ns[NOW]);
	fflush(stdout);
}

static void wait_for_line(void) {
	char line[2];

	/* Into stdio's buffers, no memory is taken under the filter. */
	if (write(1, "paused\n", 7) != 7 || read(0, line, 1) != 1)
		fail("the test has ended", 0, 0);
}

int main(int count, char **arguments) {
	latest = mmap(NULL, sizeof(*latest), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	alarm(TIMEOUT);
	read_many(1000);
	for (int i = 1; i < count; i++) {
		const char *step = arguments[i];

		if (!strncmp(step, "open", 4)) {
			int source = fastpath_clock_open(FASTPATH_CLOCK_MAY_PUBLISH);
			struct fastpath_clock_evidence evidence;
			fastpath_clock_evidence(&evidence);
			if (evidence.source != source || (evidence.tried == NULL) != (source != FASTPATH_CLOCK_KERNEL))
				fail("evidence", (uint64_t)evidence.source, (uint64_t)source);
			if (step[4] && source != step[5] - '0')
				fail(evidence.tried ? evidence.tried : "source", (uint64_t)source, 0);
		} else if (!strcmp(step, "page")) {
			read_until(1);
		} else if (!strcmp(step, "kernel")) {
			read_until(0);
		} else if (!strncmp(step, "threads", 7)) {
			read_in_threads(step[7] ? strtoull(step + 8, NULL, 10) : 0);
		} else if (!strcmp(step, "fork")) {
			go_on_in_child(0);
		} else if (!strcmp(step, "orphan")) {
			go_on_in_child(1);
		} else if (!strcmp(step, "filter")) {
			kill_for_calls();
		} else if (!strncmp(step, "bounds=", 7)) {
			read_bounds(strtoull(step + 7, NULL, 10) * 1000000);
		} else if (!strcmp(step, "cost")) {
			print_cost();
		} else if (!strncmp(step, "check", 5)) {
			struct fastpath_clock_check check;
			if (step[5])
				prctl(PR_SET_TSC, PR_TSC_SIGSEGV);
			fastpath_clock_check(&check);
			if (step[5])
				prctl(PR_SET_TSC, PR_TSC_ENABLE);
			printf("path %d, slow %d, %s, %s: %s\n", check.path, check.is_slow, check.reason,
			       check.clocksource, check.says);
			fflush(stdout);
		} else if (!strcmp(step, "pause")) {
			wait_for_line();
		} else {
			fail(step, 0, 0);
		}
		read_many(1000);
	}
	return write(1, "ok\n", 3) != 3;
}
