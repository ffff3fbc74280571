/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Waits of every kind, which stops interrupt in different ways (signal(7)): the kernel restarts some, continues some,
 * and lets some fail with EINTR although no handler ran.
 */
#include "attached.h"

#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>

enum outcome { EXPIRED, FAILED, ANSWERED };

struct wait {
	const char *name;
	enum outcome (*wait)(struct thread *, int ms);
	/* Counted in ticks, so it may end a tick early. */
	int by_ticks;
};

/* Sources from which no data or event ever comes. */
static int silent_pipe[2], silent_sockets[2], epoll, semaphores;

static struct timespec of_ms(int ms) { return (struct timespec){0, ms * 1000000L}; }

static enum outcome timed(long result, int expired_errno) {
	if (result == 0 && expired_errno == 0) {
		return EXPIRED;
	}
	return result < 0 ? errno == expired_errno ? EXPIRED : FAILED : ANSWERED;
}

static enum outcome by_nanosleep(struct thread *thread, int ms) {
	struct timespec time = of_ms(ms);

	(void)thread;
	return timed(nanosleep(&time, NULL), 0);
}

/* Waits until a time that was read from a clock under test. */
static enum outcome until(clockid_t clock, int ms) {
	long long deadline_ns = read_libc_ns(clock) + ms * 1000000LL;
	struct timespec deadline = {deadline_ns / 1000000000, deadline_ns % 1000000000};

	errno = clock_nanosleep(clock, TIMER_ABSTIME, &deadline, NULL);
	if (errno == 0 && read_syscall_ns(clock) < deadline_ns) {
		odd(self, EARLY, "clock_nanosleep until", deadline_ns);
	}
	return errno ? FAILED : EXPIRED;
}

static enum outcome until_monotonic(struct thread *thread, int ms) {
	(void)thread;
	return until(CLOCK_MONOTONIC, ms);
}

static enum outcome until_realtime(struct thread *thread, int ms) {
	(void)thread;
	return until(CLOCK_REALTIME, ms);
}

static enum outcome by_poll(struct thread *thread, int ms) {
	struct pollfd silent = {silent_pipe[0], POLLIN, 0};

	(void)thread;
	return timed(poll(&silent, 1, ms), 0);
}

/* Waits with another signal mask. */
static enum outcome by_ppoll(struct thread *thread, int ms) {
	struct pollfd silent = {silent_pipe[0], POLLIN, 0};
	struct timespec time = of_ms(ms);
	sigset_t waiting = thread->mask;

	sigaddset(&waiting, SIGWINCH);
	return timed(ppoll(&silent, 1, &time, &waiting), 0);
}

static enum outcome by_select(struct thread *thread, int ms) {
	struct timeval time = {0, ms * 1000};

	(void)thread;
	return timed(select(0, NULL, NULL, NULL, &time), 0);
}

static enum outcome by_epoll_wait(struct thread *thread, int ms) {
	struct epoll_event event;

	(void)thread;
	return timed(epoll_wait(epoll, &event, 1, ms), 0);
}

static enum outcome by_epoll_pwait(struct thread *thread, int ms) {
	struct epoll_event event;
	sigset_t waiting = thread->mask;

	sigaddset(&waiting, SIGWINCH);
	return timed(epoll_pwait(epoll, &event, 1, ms, &waiting), 0);
}

static enum outcome by_futex(struct thread *thread, int ms) {
	int word = 7;
	struct timespec time = of_ms(ms);

	(void)thread;
	return timed(syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 7, &time, NULL, 0), ETIMEDOUT);
}

static enum outcome by_sigtimedwait(struct thread *thread, int ms) {
	struct timespec time = of_ms(ms);
	sigset_t never;

	(void)thread;
	sigemptyset(&never);
	sigaddset(&never, SIGWINCH);
	return timed(sigtimedwait(&never, NULL, &time), EAGAIN);
}

static enum outcome by_semtimedop(struct thread *thread, int ms) {
	struct sembuf down = {0, -1, 0};
	struct timespec time = of_ms(ms);

	(void)thread;
	return timed(semtimedop(semaphores, &down, 1, &time), EAGAIN);
}

/* SO_RCVTIMEO is set, so the kernel never restarts this wait. */
static enum outcome by_recv(struct thread *thread, int ms) {
	char byte;

	(void)thread;
	(void)ms;
	return timed(recv(silent_sockets[0], &byte, 1, 0), EAGAIN);
}

static const struct wait waits[] = {
    {"nanosleep", by_nanosleep, 0},
    {"clock_nanosleep MONOTONIC", until_monotonic, 0},
    {"clock_nanosleep REALTIME", until_realtime, 0},
    {"poll", by_poll, 0},
    {"ppoll", by_ppoll, 0},
    {"select", by_select, 0},
    {"epoll_wait", by_epoll_wait, 0},
    {"epoll_pwait", by_epoll_pwait, 0},
    {"futex", by_futex, 0},
    {"sigtimedwait", by_sigtimedwait, 0},
    {"semtimedop", by_semtimedop, 1},
    {"recv with SO_RCVTIMEO", by_recv, 1},
};
enum { WAITS = sizeof(waits) / sizeof(waits[0]), RECV_MS = 8 };

void prepare_sleepers(void) {
	struct timeval time = {0, RECV_MS * 1000};
	struct epoll_event event = {.events = EPOLLIN};

	if (pipe(silent_pipe) || socketpair(AF_UNIX, SOCK_STREAM, 0, silent_sockets)) {
		fail("a pipe");
	}
	if (setsockopt(silent_sockets[0], SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time))) {
		fail("SO_RCVTIMEO");
	}
	epoll = epoll_create1(0);
	if (epoll < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, silent_pipe[0], &event)) {
		fail("epoll");
	}
	/* If System V semaphores are not available, this wait is skipped. */
	semaphores = semget(IPC_PRIVATE, 1, 0600);
}

void release_sleepers(void) {
	if (semaphores >= 0) {
		semctl(semaphores, 0, IPC_RMID);
	}
}

static void judge(struct thread *thread, const struct wait *wait, enum outcome outcome, int ms, long long took_ns,
		  int signals) {
	switch (outcome) {
	case EXPIRED:
		if (took_ns < ms * 1000000LL && !wait->by_ticks) {
			odd(thread, EARLY, wait->name, took_ns);
		}
		break;
	case FAILED:
		if (errno != EINTR) {
			odd(thread, ODD_RESULT, wait->name, errno);
		} else if (signals == 0) {
			odd(thread, UNEXPLAINED_EINTR, wait->name, took_ns);
		} else {
			thread->handled_eintr++;
		}
		break;
	case ANSWERED:
		odd(thread, ODD_RESULT, wait->name, 0);
		break;
	}
}

void sleep_in_turns(struct thread *thread) {
	/* Each thread begins with another kind, so that all kinds are in progress at any moment. */
	const struct wait *wait = &waits[(unsigned long long)(thread->number + thread->kept++) % WAITS];
	int ms = wait->wait == by_recv ? RECV_MS : 1 + (int)random_below(thread, 16);
	int signals = thread->signals;
	long long begun_ns = read_syscall_ns(ID_MONOTONIC);
	enum outcome outcome;

	if (wait->wait == by_semtimedop && semaphores < 0) {
		return;
	}
	outcome = wait->wait(thread, ms);
	judge(thread, wait, outcome, ms, read_syscall_ns(ID_MONOTONIC) - begun_ns, thread->signals - signals);
	look_once(&thread->order);
	check_mask(thread, wait->name);
}
