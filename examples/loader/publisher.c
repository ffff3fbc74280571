/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "publisher.h"
#include "complain.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010 /* Linux 5.1 */
#endif
#ifndef TFD_TIMER_CANCEL_ON_SET
#define TFD_TIMER_CANCEL_ON_SET (1 << 1)
#endif

/* The rate is known after a few windows; the first one is a millisecond long. */
enum { FIRST_SAMPLES = 100 };

static uint64_t window_ns(const struct publisher *publisher) {
	struct fastpath_state state = {.size = sizeof(state)};

	fastpath_state_of(&publisher->publisher, &state);
	return state.next_window_ns;
}

static struct timespec as_timespec(uint64_t ns) {
	return (struct timespec){.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
}

/* Publishes the first anchor, so that the program's first read is already a fast one. */
static int publish_first(struct publisher *publisher) {
	int outcome = FASTPATH_WAIT;

	for (int i = 0; i < FIRST_SAMPLES && outcome != FASTPATH_PUBLISHED; i++) {
		if (i > 0) {
			struct timespec pause = as_timespec(window_ns(publisher));

			nanosleep(&pause, NULL);
		}
		outcome = fastpath_publish(&publisher->publisher, NULL);
		if (outcome < 0)
			return complain("publishing", fastpath_strerror(outcome));
	}
	return 0;
}

static int map_page(struct publisher *publisher) {
	const int fd = memfd_create("fastpath-page", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	char path[64];

	if (fd < 0 || ftruncate(fd, FASTPATH_PAGE_SIZE))
		return complain_errno("making a file for the page");
	publisher->page = mmap(NULL, FASTPATH_PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (publisher->page == MAP_FAILED)
		return complain_errno("mapping the page");
	/* The mapping above stays writable and no other can be, and the file cannot shrink, which would make a
	 * reader fault. */
	if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL))
		return complain_errno("sealing the page");
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	publisher->page_fd = open(path, O_RDONLY | O_CLOEXEC);
	close(fd);
	return publisher->page_fd < 0 ? complain_errno("opening the page for readers") : 0;
}

int start_publisher(struct publisher *publisher) {
	struct fastpath_verdict verdict = {.size = sizeof(verdict)};
	int status;

	if (map_page(publisher))
		return -1;
	status = fastpath_page_init(publisher->page, NULL);
	if (status == 0)
		status = fastpath_examine(FASTPATH_EXAMINE_CPUS, &verdict);
	if (status == 0)
		status = fastpath_publisher_init(&publisher->publisher, publisher->page, NULL);
	if (status < 0)
		return complain("starting the publisher", fastpath_strerror(status));
	publisher->distrust = verdict.distrust;
	return verdict.distrust == FASTPATH_BELIEVED ? publish_first(publisher) : 0;
}

void leave_publisher(struct publisher *publisher) { munmap(publisher->page, FASTPATH_PAGE_SIZE); }

/* Returns a timer that becomes readable only when CLOCK_REALTIME is set, or -1 if there is none. */
static int watch_for_steps(void) {
	const int fd = timerfd_create(CLOCK_REALTIME, TFD_CLOEXEC | TFD_NONBLOCK);
	/* Year 2037, which still fits in 32 bits. */
	const struct itimerspec far = {.it_value.tv_sec = 0x7f000000};

	if (fd >= 0 && timerfd_settime(fd, TFD_TIMER_ABSTIME | TFD_TIMER_CANCEL_ON_SET, &far, NULL)) {
		close(fd);
		return -1;
	}
	return fd;
}

static int step_seen(int steps) {
	uint64_t expirations;

	return steps >= 0 && read(steps, &expirations, sizeof(expirations)) < 0 && errno == ECANCELED;
}

/* Signals from the terminal reach the program directly; only the others must be forwarded. */
static int sent_by_process(const struct signalfd_siginfo *signal) { return signal->ssi_code <= 0; }

/* Returns true if the program has ended; `status` is its wait status. */
static int handle_signals(int signals, pid_t program, int *status) {
	struct signalfd_siginfo signal;

	while (read(signals, &signal, sizeof(signal)) == sizeof(signal)) {
		if (signal.ssi_signo == SIGCHLD) {
			if (waitpid(program, status, WNOHANG) == program)
				return 1;
		} else if (sent_by_process(&signal)) {
			kill(program, (int)signal.ssi_signo);
		}
	}
	return 0;
}

int publish_until_exit(struct publisher *publisher, pid_t program, const sigset_t *signals) {
	struct pollfd ready[] = {{.fd = signalfd(-1, signals, SFD_CLOEXEC | SFD_NONBLOCK), .events = POLLIN},
				 {.fd = watch_for_steps(), .events = POLLIN}};
	const int believed = publisher->distrust == FASTPATH_BELIEVED;
	int status;

	if (ready[0].fd < 0)
		return complain_errno("waiting for the program");
	while (!handle_signals(ready[0].fd, program, &status)) {
		struct timespec timeout = {0};

		if (believed) {
			if (step_seen(ready[1].fd))
				fastpath_publish_step(&publisher->publisher, NULL);
			fastpath_publish(&publisher->publisher, NULL);
			timeout = as_timespec(window_ns(publisher));
		}
		ppoll(ready, 2, believed ? &timeout : NULL, NULL);
	}
	return status;
}
