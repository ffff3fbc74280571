/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * call-frames: whether an unwinder finds the callers of reads of clocks. Reads each clock and time of day many times,
 * one instruction at a time, and unwinds at each instruction that lies in the kernel's vDSO. Prints, for each clock,
 * `CLOCK: WHOLE whole reads, LOST of STEPS lost`; a whole read is one without an instruction in code of no object, and
 * only its steps count.
 * Then cancels threads that read clocks, and prints `CLOCK: RUN of COUNT cleanups`.
 *
 *     call-frames [waits]    waits: prints `ready`, and waits for SIGUSR1 first
 */
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>
#include <unwind.h>

/* Of each clock. */
#ifndef READS
#define READS 200
#endif

enum { THREADS = 50, DAY = -1 };
#define TRAP_FLAG 0x100

struct range {
	uintptr_t start, end;
};

/* The vDSO, and mappings of no object. */
static struct range vdso, others[32];
static int count_of_others;
static volatile long steps, lost, outside;
static volatile sig_atomic_t reaches_reader;

/* Not declared to throw nothing: the call may be unwound through. */
static int (*volatile read_clock)(clockid_t, struct timespec *) = clock_gettime;
static int (*volatile read_day)(struct timeval *, void *) = (int (*)(struct timeval *, void *))(uintptr_t)gettimeofday;

__attribute__((noinline)) static int read_once(int clock) {
	struct timespec time;
	struct timeval day;
	int failed = clock == DAY ? read_day(&day, NULL) : read_clock(clock, &time);

	__asm__ volatile("" ::: "memory");
	return failed;
}

static _Unwind_Reason_Code see(struct _Unwind_Context *context, void *unused) {
	(void)unused;
	if (_Unwind_FindEnclosingFunction((void *)_Unwind_GetIP(context)) == (void *)read_once)
		reaches_reader = 1;
	return _URC_NO_REASON;
}

static void step(int signal, siginfo_t *info, void *context) {
	uintptr_t pc = (uintptr_t)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];

	(void)signal;
	(void)info;
	for (int i = 0; i < count_of_others; i++)
		outside += pc - others[i].start < others[i].end - others[i].start;
	if (pc - vdso.start >= vdso.end - vdso.start)
		return;
	reaches_reader = 0;
	_Unwind_Backtrace(see, NULL);
	steps++;
	lost += !reaches_reader;
}

static void set_trap_flag(int on) {
	if (on)
		__asm__ volatile("pushfq; orq %0, (%%rsp); popfq" ::"i"(TRAP_FLAG) : "cc", "memory");
	else
		__asm__ volatile("pushfq; andq %0, (%%rsp); popfq" ::"i"(~TRAP_FLAG) : "cc", "memory");
}

/* Reads a clock once, step by step. Returns whether it was a whole read. */
static int step_through_one(int clock) {
	steps = lost = outside = 0;
	set_trap_flag(1);
	read_once(clock);
	set_trap_flag(0);
	return steps && !outside;
}

static void step_through(const char *name, int clock) {
	long whole = 0, all_steps = 0, all_lost = 0;

	for (int i = 0; i < READS; i++) {
		if (!step_through_one(clock))
			continue;
		whole++;
		all_steps += steps;
		all_lost += lost;
	}
	printf("%s: %ld whole reads, %ld of %ld lost\n", name, whole, all_lost, all_steps);
}

/* Waits until the page answers: a publisher that has just begun knows little. */
static void wait_for_page(void) {
	for (int tries = 0, whole = 0; tries < READS && whole < READS / 2; tries++) {
		whole = step_through_one(CLOCK_MONOTONIC) ? whole + 1 : 0;
		if (!whole)
			usleep(10000);
	}
}

static volatile long ready, cleanups;
static int clock_of_threads;

static void clean_up(void *unused) {
	(void)unused;
	__sync_fetch_and_add(&cleanups, 1);
}

static void *read_until_cancelled(void *unused) {
	pthread_cleanup_push(clean_up, NULL);
	pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
	__sync_fetch_and_add(&ready, 1);
	for (;;)
		read_once(clock_of_threads);
	pthread_cleanup_pop(0);
	return unused;
}

static void cancel_threads(const char *name, int clock) {
	clock_of_threads = clock;
	ready = cleanups = 0;
	for (int i = 0; i < THREADS; i++) {
		pthread_t thread;

		if (pthread_create(&thread, NULL, read_until_cancelled, NULL))
			exit(1);
		while (ready <= i)
			usleep(100);
		usleep((useconds_t)(100 + i % 7 * 50));
		pthread_cancel(thread);
		pthread_join(thread, NULL);
	}
	printf("%s: %ld of %d cleanups\n", name, cleanups, THREADS);
}

static void find_mappings(void) {
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[512];
	struct range range;

	while (maps && fgets(line, sizeof line, maps)) {
		if (sscanf(line, "%lx-%lx", &range.start, &range.end) != 2)
			continue;
		if (strstr(line, "[vdso]"))
			vdso = range;
		if (strstr(line, "fastpath-region") && count_of_others < (int)(sizeof others / sizeof others[0]))
			others[count_of_others++] = range;
	}
	if (maps)
		fclose(maps);
}

int main(int argc, char **argv) {
	struct sigaction action = {.sa_sigaction = step, .sa_flags = SA_SIGINFO};

	(void)argv;
	if (argc > 1) {
		sigset_t set;
		int signal;

		sigemptyset(&set);
		sigaddset(&set, SIGUSR1);
		sigprocmask(SIG_BLOCK, &set, NULL);
		puts("ready");
		fflush(stdout);
		sigwait(&set, &signal);
	}
	find_mappings();
	/* Loads the unwinder, and resolves what is called. */
	_Unwind_Backtrace(see, NULL);
	read_once(CLOCK_REALTIME);
	read_once(DAY);
	sigaction(SIGTRAP, &action, NULL);
	wait_for_page();
	step_through("realtime", CLOCK_REALTIME);
	step_through("monotonic", CLOCK_MONOTONIC);
	step_through("raw", CLOCK_MONOTONIC_RAW);
	step_through("boottime", CLOCK_BOOTTIME);
	step_through("tai", CLOCK_TAI);
	step_through("day", DAY);
	step_through("coarse", CLOCK_MONOTONIC_COARSE);
	step_through("cpu", CLOCK_PROCESS_CPUTIME_ID);
	cancel_threads("monotonic", CLOCK_MONOTONIC);
	cancel_threads("day", DAY);
	return 0;
}
