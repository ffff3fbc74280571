/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* exec-storm THREADS EXECS: THREADS threads sleep, compute or wait, until one of them, after a random time, executes
 * this program again. At the end it prints "done", and waits. It exits with 1 if time goes back. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static char **arguments;
static atomic_int is_over;

static void check(void) {
	struct timespec now[2];

	clock_gettime(CLOCK_MONOTONIC, &now[0]);
	clock_gettime(CLOCK_MONOTONIC, &now[1]);
	if (now[1].tv_sec < now[0].tv_sec || (now[1].tv_sec == now[0].tv_sec && now[1].tv_nsec < now[0].tv_nsec)) {
		puts("back");
		fflush(stdout);
		_exit(1);
	}
}

static void *live(void *number) {
	const struct timespec nap = {0, 1000 * (1 + (long)number % 50)};

	while (!atomic_load(&is_over)) {
		check();
		if ((long)number % 10)
			nanosleep(&nap, NULL);
	}
	return NULL;
}

static void *execute(void *next) {
	struct timespec now, wait = {0};

	clock_gettime(CLOCK_MONOTONIC, &now);
	wait.tv_nsec = now.tv_nsec / 100 % 40 * 1000000;
	nanosleep(&wait, NULL);
	arguments[2] = next;
	execv("/proc/self/exe", arguments);
	perror("execv");
	_exit(1);
}

int main(int argc, char **argv) {
	char next[16];
	pthread_t thread;
	int threads, execs;

	if (argc < 3)
		return 2;
	arguments = argv;
	threads = atoi(argv[1]);
	execs = atoi(argv[2]);
	if (argc == 3) {
		/* One thread only. */
		char *more[] = {argv[0], argv[1], argv[2], "again", NULL};
		puts("ready");
		fflush(stdout);
		execv("/proc/self/exe", more);
		return 2;
	}
	if (execs == 0) {
		puts("done");
		fflush(stdout);
		for (;;)
			pause();
	}
	snprintf(next, sizeof next, "%d", execs - 1);
	for (long i = 0; i < threads; i++)
		if (pthread_create(&thread, NULL, live, (void *)i)) {
			errno = EAGAIN;
			perror("pthread_create");
			return 1;
		}
	pthread_create(&thread, NULL, execute, next);
	pthread_join(thread, NULL);
	return 0;
}
