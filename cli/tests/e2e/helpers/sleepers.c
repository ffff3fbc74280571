/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Threads that wait in the kernel in many ways. Each wait must end as its manual page says, and not too early. Prints a
 * line for each that did not; ends with SIGTERM, and then also prints each way in which no thread has waited. */
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ipc.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { WAIT_MS = 200, NS = 1000000 };

static const struct timespec wait_time = {0, WAIT_MS *(long)NS};
static volatile sig_atomic_t is_over;
static int semaphores;
static int pipe_fds[2];
static _Atomic int failures;

static long long now_ns(void) {
	struct timespec now;
	syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static long by_nanosleep(void) { return nanosleep(&wait_time, NULL); }

static long by_absolute_sleep(void) {
	struct timespec until;
	syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &until);
	until.tv_nsec += WAIT_MS * (long)NS;
	if (until.tv_nsec >= 1000000000) {
		until.tv_sec++;
		until.tv_nsec -= 1000000000;
	}
	return syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
}

static long by_poll(void) {
	struct pollfd fd = {pipe_fds[0], POLLIN, 0};
	return poll(&fd, 1, WAIT_MS);
}

static long by_ppoll(void) {
	struct pollfd fd = {pipe_fds[0], POLLIN, 0};
	sigset_t mask;
	sigemptyset(&mask);
	sigaddset(&mask, SIGTERM);
	return ppoll(&fd, 1, &wait_time, &mask);
}

static long by_select(void) {
	struct timeval time = {0, WAIT_MS * 1000};
	fd_set set;
	FD_ZERO(&set);
	FD_SET(pipe_fds[0], &set);
	return select(pipe_fds[0] + 1, &set, NULL, NULL, &time);
}

static long by_epoll(void) {
	struct epoll_event event = {EPOLLIN, {0}};
	int fd = epoll_create1(0);
	epoll_ctl(fd, EPOLL_CTL_ADD, pipe_fds[0], &event);
	long answer = epoll_wait(fd, &event, 1, WAIT_MS);
	int kept = errno;
	close(fd);
	errno = kept;
	return answer;
}

static long by_futex(void) {
	int word = 0;
	long answer = syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &wait_time, NULL, 0);
	return answer == -1 && errno == ETIMEDOUT ? 0 : answer ? answer : -1;
}

static long by_sigtimedwait(void) {
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	long answer = sigtimedwait(&set, NULL, &wait_time);
	return answer == -1 && errno == EAGAIN ? 0 : -1;
}

static long by_semaphore(void) {
	struct sembuf down = {0, -1, 0};
	long answer = semtimedop(semaphores, &down, 1, &wait_time);
	return answer == -1 && errno == EAGAIN ? 0 : -1;
}

static long by_socket(void) {
	int pair[2];
	char byte;
	struct timeval time = {0, WAIT_MS * 1000};
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
		return -1;
	setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time));
	long answer = recv(pair[0], &byte, 1, 0);
	int kept = errno;
	close(pair[0]);
	close(pair[1]);
	errno = kept;
	return answer == -1 && errno == EAGAIN ? 0 : -1;
}

/* Waits without a timeout for a byte, which the thread below writes. */
static int slow_pipe[2];

static long by_read(void) {
	char byte;
	return read(slow_pipe[0], &byte, 1) == 1 ? 0 : -1;
}

static void *write_slowly(void *unused) {
	(void)unused;
	while (!is_over) {
		struct timespec rest = {0, (WAIT_MS + 100) * (long)NS};
		nanosleep(&rest, NULL);
		if (write(slow_pipe[1], "x", 1) != 1)
			abort();
	}
	return NULL;
}

static const struct way {
	const char *name;
	long (*wait)(void);
	int takes_its_time;
} ways[] = {
    {"nanosleep", by_nanosleep, 1},
    {"clock_nanosleep", by_absolute_sleep, 1},
    {"poll", by_poll, 1},
    {"ppoll", by_ppoll, 1},
    {"select", by_select, 1},
    {"epoll_wait", by_epoll, 1},
    {"futex", by_futex, 1},
    {"sigtimedwait", by_sigtimedwait, 1},
    {"semtimedop", by_semaphore, 1},
    {"recv", by_socket, 1},
    {"read", by_read, 0},
};
enum { WAYS = sizeof(ways) / sizeof(*ways) };
static _Atomic int waits[WAYS];

static void *wait_again_and_again(void *which) {
	const struct way *way = which;
	sigset_t before, after;
	sigemptyset(&before);
	sigaddset(&before, SIGUSR1);
	sigaddset(&before, SIGUSR2);
	sigaddset(&before, SIGTERM);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	while (!is_over) {
		long long begun = now_ns();
		errno = 0;
		long answer = way->wait();
		int error = errno;
		long long took_ms = (now_ns() - begun) / NS;
		pthread_sigmask(SIG_SETMASK, NULL, &after);
		int masked =
		    sigismember(&after, SIGUSR1) && sigismember(&after, SIGUSR2) && !sigismember(&after, SIGHUP);
		if (answer || !masked || (way->takes_its_time && took_ms < WAIT_MS - 1)) {
			printf("%s: %ld %s after %lld ms, mask %s\n", way->name, answer, strerror(error), took_ms,
			       masked ? "kept" : "changed");
			fflush(stdout);
			failures++;
		}
		waits[way - ways]++;
	}
	return NULL;
}

static void on_term(int signal) {
	(void)signal;
	is_over = 1;
}

int main(void) {
	pthread_t threads[WAYS], writer;
	sigset_t term;
	struct sigaction action = {.sa_handler = on_term};

	semaphores = semget(IPC_PRIVATE, 1, 0600);
	if (semaphores < 0 || pipe(pipe_fds) || pipe(slow_pipe))
		return 2;
	sigaction(SIGTERM, &action, NULL);
	/* No other thread takes the signal, nor does this one while it does not wait for it. */
	sigemptyset(&term);
	sigaddset(&term, SIGTERM);
	pthread_sigmask(SIG_BLOCK, &term, NULL);
	for (int i = 0; i < WAYS; i++)
		pthread_create(&threads[i], NULL, wait_again_and_again, (void *)&ways[i]);
	pthread_create(&writer, NULL, write_slowly, NULL);
	puts("ready");
	fflush(stdout);
	sigemptyset(&term);
	while (!is_over)
		sigsuspend(&term);
	for (int i = 0; i < WAYS; i++)
		pthread_join(threads[i], NULL);
	pthread_join(writer, NULL);
	semctl(semaphores, 0, IPC_RMID);
	for (int i = 0; i < WAYS; i++)
		if (!waits[i])
			printf("%s: never\n", ways[i].name);
	puts("done");
	return failures != 0;
}
