/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Waits in each thread for what never comes, by a call that a stop makes begin anew. Prints `ready`, and `done` once
 * all have timed out, not too early, and as their manual pages say; else a line for each that has not. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ipc.h>
#include <sys/sem.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { WAIT_S = 2 };

static const struct timespec wait_time = {WAIT_S, 0};
static _Atomic int failures;

static long by_epoll_wait(void) {
	struct epoll_event event;
	return epoll_wait(epoll_create1(0), &event, 1, WAIT_S * 1000);
}

static long by_epoll_pwait(void) {
	struct epoll_event event;
	sigset_t mask;
	sigemptyset(&mask);
	return epoll_pwait(epoll_create1(0), &event, 1, WAIT_S * 1000, &mask);
}

static long by_epoll_pwait2(void) {
	struct epoll_event event;
	long answer = syscall(441, epoll_create1(0), &event, 1, &wait_time, NULL, 8);
	if (answer < 0 && errno == ENOSYS) {
		sleep(WAIT_S);
		return 0;
	}
	return answer;
}

static long by_semtimedop(void) {
	struct sembuf take = {0, -1, 0};
	int semaphores = semget(IPC_PRIVATE, 1, 0600);
	long answer = semtimedop(semaphores, &take, 1, &wait_time);
	int kept = errno;
	semctl(semaphores, 0, IPC_RMID);
	errno = kept;
	return answer;
}

static long by_sigtimedwait(void) {
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	return sigtimedwait(&set, NULL, &wait_time);
}

static const struct {
	const char *name;
	long (*wait)(void);
	long answer;
} ways[] = {{"epoll_wait", by_epoll_wait, 0},
	    {"epoll_pwait", by_epoll_pwait, 0},
	    {"epoll_pwait2", by_epoll_pwait2, 0},
	    {"semtimedop", by_semtimedop, -1},
	    {"sigtimedwait", by_sigtimedwait, -1}};
enum { WAYS = sizeof(ways) / sizeof(*ways) };

static void *wait_once(void *argument) {
	const size_t way = (size_t)argument;
	struct timespec from, to;

	clock_gettime(CLOCK_MONOTONIC, &from);
	errno = 0;
	const long answer = ways[way].wait();
	const int error = errno;
	clock_gettime(CLOCK_MONOTONIC, &to);
	const double seconds = (double)(to.tv_sec - from.tv_sec) + (double)(to.tv_nsec - from.tv_nsec) / 1e9;
	/* A timer of the kernel may end a millisecond early for another clock. */
	if (answer != ways[way].answer || (answer < 0 && error != EAGAIN) || seconds < WAIT_S - 0.01) {
		printf("%s: %ld, errno %d, after %.3f s\n", ways[way].name, answer, error, seconds);
		failures++;
	}
	return NULL;
}

int main(void) {
	pthread_t threads[WAYS];
	sigset_t set;

	setvbuf(stdout, NULL, _IONBF, 0);
	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	sigprocmask(SIG_BLOCK, &set, NULL);
	for (size_t way = 0; way < WAYS; way++)
		pthread_create(&threads[way], NULL, wait_once, (void *)way);
	printf("ready\n");
	for (size_t way = 0; way < WAYS; way++)
		pthread_join(threads[way], NULL);
	printf(failures ? "failed\n" : "done\n");
	return failures != 0;
}
