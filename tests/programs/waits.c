/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * waits: waits that only a signal, a timeout or nothing ends, until SIGTERM. Prints how many ended otherwise; exit
 * status 1 if any did.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t is_over;
static volatile long handled, forged, unended, early;
static long interrupted, ended_early;

static void on_timer(int signal, siginfo_t *information, void *context) {
	(void)signal, (void)context;
	forged += information->si_code != SI_TIMER || information->si_value.sival_int != 4711;
	handled++;
}

static void on_end(int signal) {
	(void)signal;
	is_over = 1;
}

static double now(void) {
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* No signal ends it: it would return EINTR at a stop. */
static void *wait_for_nothing(void *timeout) {
	struct epoll_event event;
	int poll = epoll_create1(0);

	for (;;) {
		int events = epoll_wait(poll, &event, 1, *(int *)timeout);

		if (events != 0) {
			__atomic_fetch_add(&interrupted, 1, __ATOMIC_RELAXED);
		}
	}
	return NULL;
}

static void *sleep_again_and_again(void *unused) {
	const struct timespec time = {1, 0};

	for (;;) {
		double begun = now();

		if (nanosleep(&time, NULL) != 0 || now() - begun < 1) {
			__atomic_fetch_add(&ended_early, 1, __ATOMIC_RELAXED);
		}
	}
	return unused;
}

int main(void) {
	static int timeouts[] = {-1, -1, 300};
	const struct sigaction timed = {.sa_sigaction = on_timer, .sa_flags = SA_SIGINFO}, end = {.sa_handler = on_end};
	struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN, .sigev_value.sival_int = 4711};
	const struct itimerspec once = {.it_value.tv_nsec = 30000000};
	const struct timespec longest = {20, 0};
	pthread_t thread;
	sigset_t all, none;
	timer_t timer;
	long waits = 0;

	sigfillset(&all);
	sigemptyset(&none);
	sigprocmask(SIG_BLOCK, &all, NULL);
	sigaction(SIGRTMIN, &timed, NULL);
	sigaction(SIGTERM, &end, NULL);
	for (unsigned int i = 0; i < sizeof(timeouts) / sizeof(timeouts[0]); i++) {
		pthread_create(&thread, NULL, wait_for_nothing, &timeouts[i]);
	}
	pthread_create(&thread, NULL, sleep_again_and_again, NULL);
	timer_create(CLOCK_MONOTONIC, &event, &timer);
	/* One signal for each wait, which nothing else ends. */
	for (; !is_over; waits++) {
		long before = handled;

		timer_settime(timer, 0, &once, NULL);
		if (pselect(0, NULL, NULL, NULL, &longest, &none) == 0) {
			unended++;
		} else if (errno != EINTR || (handled == before && !is_over)) {
			early++;
		}
	}
	printf("%ld waits for a signal: %ld not ended, %ld ended early, %ld signals changed; %ld waits for nothing "
	       "interrupted, "
	       "%ld sleeps ended early\n",
	       waits, unended, early, forged, interrupted, ended_early);
	return unended || early || forged || interrupted || ended_early;
}
