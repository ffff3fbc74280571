/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "cpu-time.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 2000, MOST_EVENTS = 4000, UNPRIVILEGED = 65534 };

static void *thread(void *with_event) {
	if (with_event) {
		volatile struct perf_event_mmap_page *page = map_event();

		if (!page)
			die("the thread's event");
		unmap_event(page);
	}
	return NULL;
}

static double thread_us(void *with_event) {
	uint64_t start = wall_ns();
	pthread_t id;

	if (pthread_create(&id, NULL, thread, with_event))
		die("pthread_create");
	pthread_join(id, NULL);
	return (double)(wall_ns() - start) / 1000;
}

int threads(int argc, char **argv) {
	static double us[5][THREADS];
	static const char *const names[5] = {"open, map and close", "unmap", "thread, created and joined",
					     "the same with an event", "the first event of the host"};
	volatile struct perf_event_mmap_page *page;

	(void)argc, (void)argv;
	for (int i = 0; i < 5; i++) {
		/* The kernel switches its hooks off a second after the last event (perf_sched_delayed). */
		usleep(1500000);
		uint64_t start = wall_ns();

		page = map_event();
		us[4][i] = (double)(wall_ns() - start) / 1000;
		if (!page)
			die("the thread's event");
		unmap_event(page);
	}
	page = map_event();
	for (int i = 0; i < THREADS; i++) {
		uint64_t start = wall_ns();
		volatile struct perf_event_mmap_page *one = map_event();
		uint64_t middle = wall_ns();

		unmap_event(one);
		us[0][i] = (double)(middle - start) / 1000;
		us[1][i] = (double)(wall_ns() - middle) / 1000;
		us[2][i] = thread_us(NULL);
		us[3][i] = thread_us("");
	}
	unmap_event(page);
	printf("%-28s %10s %10s\n", "us", "median", "95 %");
	for (int i = 0; i < 5; i++) {
		size_t count = i == 4 ? 5 : THREADS;

		printf("%-28s %10.1f %10.1f\n", names[i], quantile(us[i], count, 0.5), quantile(us[i], count, 0.95));
	}
	return 0;
}

/* Reads a number of a file of /proc. */
static long number(const char *path, const char *format) {
	char line[256];
	long value = -1;
	FILE *file = fopen(path, "r");

	while (file && value < 0 && fgets(line, sizeof line, file))
		sscanf(line, format, &value);
	if (file)
		fclose(file);
	return value;
}

static void map_most(void) {
	int count = 0;

	while (count < MOST_EVENTS && map_event())
		count++;
	if (count < MOST_EVENTS)
		printf("  %d events mapped, then: %s\n", count, strerror(errno));
	else
		printf("  %d events mapped\n", count);
	fflush(stdout);
}

int limits(int argc, char **argv) {
	(void)argc, (void)argv;
	printf("perf_event_paranoid %ld, perf_event_mlock_kb %ld, CPUs %ld\n",
	       number("/proc/sys/kernel/perf_event_paranoid", "%ld"),
	       number("/proc/sys/kernel/perf_event_mlock_kb", "%ld"), sysconf(_SC_NPROCESSORS_ONLN));
	for (int is_unprivileged = 0; is_unprivileged < 2; is_unprivileged++) {
		printf("%s\n", is_unprivileged ? "another user" : "as started");
		fflush(stdout);
		if (fork() == 0) {
			if (is_unprivileged && (setgid(UNPRIVILEGED) || setuid(UNPRIVILEGED)))
				die("setuid");
			map_most();
			_exit(0);
		}
		wait(NULL);
	}
	return 0;
}
