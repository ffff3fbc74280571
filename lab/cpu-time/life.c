/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "cpu-time.h"

#include <linux/perf_event.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { UNTIL_PREEMPTED_NS = 500000000 };

static void spin(void) {
	for (uint64_t end = wall_ns() + UNTIL_PREEMPTED_NS; wall_ns() < end;)
		;
}

static void *spin_forever(void *argument) {
	for (;;)
		__asm__ volatile("");
	return argument;
}

static long switches_of_thread(void) {
	struct rusage usage;

	getrusage(RUSAGE_THREAD, &usage);
	return usage.ru_nvcsw + usage.ru_nivcsw;
}

static void do_nothing(void) {}
static void make_system_call(void) { getppid(); }
static void take_nap(void) { usleep(1000); }
static void yield(void) { sched_yield(); }

static void migrate(void) {
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(sched_getcpu() == 0, &set);
	sched_setaffinity(0, sizeof set, &set);
}

static void show(const char *name, void (*act)(void)) {
	struct cpu_clock clocks[2];
	uint64_t kernel_reads[2];

	for (enum detector detector = BY_EVENT; detector <= BY_RSEQ; detector++) {
		if (cpu_clock_init(&clocks[detector], detector))
			die("the thread's clock");
		/* The first answers are slow and no anchors. */
		while (!clocks[detector].is_anchored)
			cpu_clock_read(&clocks[detector]);
		kernel_reads[detector] = clocks[detector].kernel_reads;
	}
	uint32_t seq = clocks[BY_EVENT].page->lock;
	long switched = switches_of_thread();

	act();
	seq = clocks[BY_EVENT].page->lock - seq;
	for (enum detector detector = BY_EVENT; detector <= BY_RSEQ; detector++)
		cpu_clock_read(&clocks[detector]);
	switched = switches_of_thread() - switched;
	printf("%-16s %10ld %14u %18lu %16lu\n", name, switched, seq,
	       (unsigned long)(clocks[BY_EVENT].kernel_reads - kernel_reads[BY_EVENT]),
	       (unsigned long)(clocks[BY_RSEQ].kernel_reads - kernel_reads[BY_RSEQ]));
	for (enum detector detector = BY_EVENT; detector <= BY_RSEQ; detector++)
		cpu_clock_end(&clocks[detector]);
}

/* The page of a thread that has ended: what a new thread with the same thread pointer would find. */
static void *leave_page(void *page) {
	*(volatile struct perf_event_mmap_page **)page = map_event();
	return NULL;
}

static void show_death(void) {
	volatile struct perf_event_mmap_page *page;
	pthread_t thread;

	if (pthread_create(&thread, NULL, leave_page, (void *)&page))
		die("pthread_create");
	pthread_join(thread, NULL);
	if (!page)
		die("the thread's event");
	uint32_t seq = page->lock;

	take_nap();
	printf("after the thread's death its page is mapped, and its sequence %s\n",
	       page->lock == seq ? "never changes again" : "changes");
	unmap_event(page);
}

static void show_fork(void) {
	volatile struct perf_event_mmap_page *page = map_event();
	int status;

	if (!page)
		die("the thread's event");
	if (fork() == 0)
		_exit(page->lock & 1);
	wait(&status);
	printf("a child of fork that reads the page %s\n",
	       WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "has it mapped");
	unmap_event(page);
}

int life(int argc, char **argv) {
	pthread_t thread;
	cpu_set_t set;

	(void)argc, (void)argv;
	CPU_ZERO(&set);
	CPU_SET(0, &set);
	if (sched_setaffinity(0, sizeof set, &set) || pthread_create(&thread, NULL, spin_forever, NULL))
		die("the other thread");
	printf("%-16s %10s %14s %18s %16s\n", "between reads", "switches", "sequence +", "event: to kernel",
	       "rseq: to kernel");
	show("nothing", do_nothing);
	show("a system call", make_system_call);
	show("sleep", take_nap);
	show("yield", yield);
	show("preemption", spin);
	show("migration", migrate);
	show_death();
	show_fork();
	return 0;
}
