/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Restores the machine's clock after the witness has ended, however it ended.
 *
 * A process in its own session holds the reading end of a pipe; only the witness holds the other end. When the witness
 * ends, it restores the state that adjtimex(2) returned before, and sets REALTIME to the time it would have now, by
 * MONOTONIC_RAW, which cannot be slewed. It holds the lock until then, because a lock belongs to an open file.
 */
#include "witness.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/timex.h>
#include <sys/wait.h>

static int ends[2] = {-1, -1};
static pid_t guardian;
static struct timex saved;
/* REALTIME minus MONOTONIC_RAW, and the MONOTONIC_RAW of that difference. */
static long long saved_difference_ns, saved_raw_ns;

static void put_back(struct timex timex) {
	if (adjtimex(&timex) < 0) {
		perror("witness: the clock's state could not be restored: adjtimex");
	}
}

static void put_back_state(void) {
	int pll = STA_PLL | STA_FREQHOLD;

	put_back((struct timex){.modes = ADJ_OFFSET_SINGLESHOT});
	/* A pending offset takes effect only with a PLL. */
	put_back((struct timex){.modes = ADJ_STATUS | ADJ_OFFSET | ADJ_NANO, .status = pll});
	put_back((struct timex){.modes = ADJ_TAI, .constant = saved.tai});
	put_back((struct timex){.modes = ADJ_TIMECONST | ADJ_NANO, .constant = saved.constant});
	put_back((struct timex){
	    .modes = ADJ_STATUS | ADJ_FREQUENCY | ADJ_TICK | ADJ_MAXERROR | ADJ_ESTERROR |
		     (saved.status & STA_NANO ? ADJ_NANO : ADJ_MICRO),
	    .status = saved.status,
	    .freq = saved.freq,
	    .tick = saved.tick,
	    .maxerror = saved.maxerror,
	    .esterror = saved.esterror,
	});
}

/* Returns REALTIME minus MONOTONIC_RAW, from the closest of some pairs of reads. */
static long long difference_ns(void) {
	long long closest_ns = 1000000000, found_ns = 0;

	for (int i = 0; i < 50; i++) {
		long long before_ns = read_kernel_ns(MONOTONIC_RAW);
		long long realtime_ns = read_kernel_ns(REALTIME);
		long long took_ns = read_kernel_ns(MONOTONIC_RAW) - before_ns;

		if (took_ns < closest_ns) {
			closest_ns = took_ns;
			found_ns = realtime_ns - before_ns - took_ns / 2;
		}
	}
	return found_ns;
}

static void put_back_time(void) {
	/* The tick is in microseconds, the frequency in units of 2^-16 ppm. */
	double gained = (double)saved.tick / 10000 * (1 + (double)saved.freq / 65536e6) - 1;
	double elapsed_ns = (double)(read_kernel_ns(MONOTONIC_RAW) - saved_raw_ns);
	long long off_ns = saved_difference_ns + (long long)(gained * elapsed_ns) - difference_ns();
	struct timex timex = {.modes = ADJ_SETOFFSET | ADJ_NANO};

	timex.time.tv_sec = off_ns / 1000000000 - (off_ns % 1000000000 < 0);
	timex.time.tv_usec = off_ns - timex.time.tv_sec * 1000000000LL;
	put_back(timex);
	/* Setting the offset makes the kernel regard a synchronised clock as unsynchronised. */
	put_back((struct timex){
	    .modes = ADJ_STATUS | ADJ_MAXERROR | ADJ_ESTERROR | (saved.status & STA_NANO ? ADJ_NANO : ADJ_MICRO),
	    .status = saved.status,
	    .maxerror = saved.maxerror,
	    .esterror = saved.esterror,
	});
}

static void guard(int slews_on) {
	struct pollfd end = {.fd = end_of_witness(), .events = POLLIN};
	long long left_ns;

	setsid();
	signal(SIGINT, SIG_IGN);
	signal(SIGTERM, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	signal(SIGPIPE, SIG_IGN);
	close_end_in_child();
	while (poll(&end, 1, -1) < 0 && errno == EINTR) {
	}
	put_back_state();
	if (slews_on) {
		left_ns = 1020000000 - read_kernel_ns(REALTIME) % 1000000000;
		nanosleep(&(struct timespec){left_ns / 1000000000, left_ns % 1000000000}, NULL);
		put_back_state();
	}
	put_back_time();
	_exit(0);
}

void start_guardian(int slews_on) {
	if (adjtimex(&saved) < 0) {
		fail("adjtimex");
	}
	saved_raw_ns = read_kernel_ns(MONOTONIC_RAW);
	saved_difference_ns = difference_ns();
	end_of_witness();
	guardian = fork();
	if (guardian < 0) {
		fail("fork");
	}
	if (guardian == 0) {
		guard(slews_on);
	}
}

int end_of_witness(void) {
	if (ends[0] < 0 && pipe2(ends, O_CLOEXEC)) {
		fail("pipe");
	}
	return ends[0];
}

void close_end_in_child(void) { close(ends[1]); }

void end_guardian(void) {
	close(ends[1]);
	if (guardian > 0) {
		waitpid(guardian, NULL, 0);
	}
}
