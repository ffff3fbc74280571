/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Random bytes: each is handed out once, in all threads and processes, and they are random.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../reads.h"
#include "../tests.h"
#include "../units.h"

enum { THREADS = 8 };

static int urandom;
static double share;

static int is_answered(void) {
	unsigned char byte;
	const long got = ask(BY_TRUTH, CALL_getrandom, (long)&byte, 1, 0);

	if (got == 1)
		return 1;
	skip("getrandom: %s", strerror(-got));
	return 0;
}

static void *request_for_ever(void *seed_offset) {
	pick_seed(seed + 1000 + (uintptr_t)seed_offset);
	while (!is_enough_of(share))
		for (unsigned i = 0; i < 32; i++)
			units_request(urandom);
	return NULL;
}

static void request_in_threads(unsigned long offset) {
	pthread_t threads[THREADS];

	for (uintptr_t i = 0; i < THREADS; i++)
		if (pthread_create(&threads[i], NULL, request_for_ever, (void *)(offset + i))) {
			skip("pthread_create");
			_exit(0);
		}
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
}

void test_random_unique(void) {
	if (!is_answered())
		return;
	urandom = open_kind(KIND_RANDOM);
	units_create(budget + 10000);
	share = 0.2;
	request_for_ever(NULL);
	share = 0.8;
	request_in_threads(10);
	share = 1;
	for (uintptr_t i = 0; i < 3; i++)
		if (fork_child() == 0) {
			units_forked();
			request_in_threads(100 * (i + 1));
			_exit(0);
		}
	for (unsigned i = 0; i < 3; i++)
		wait_child(-1, "process that takes random bytes");
	units_compare();
}

static void requests(unsigned count) {
	while (count--)
		units_request(urandom);
}

/* Generations of processes, each of which takes bytes before, beside and after its children. */
static void family(unsigned generations) {
	const unsigned children = 1 + pick(3);

	requests(pick(40));
	for (unsigned i = 0; generations && i < children; i++)
		if (fork_child() == 0) {
			units_forked();
			family(generations - 1);
			_exit(0);
		}
	requests(1 + pick(40));
	for (unsigned i = 0; generations && i < children; i++)
		wait_child(-1, "child that takes random bytes");
	requests(pick(10));
}

static volatile sig_atomic_t alarms;

/* Forks in the middle of a request. The child goes on with the request, or ends here. */
static void at_alarm(int signal) {
	const int error = errno;
	pid_t child;

	(void)signal;
	alarms++;
	requests(1 + pick(4));
	child = fork();
	if (child == 0) {
		units_forked();
		alarms = -1000;
		requests(1 + pick(20));
		if (pick(2))
			_exit(0);
	}
	requests(1 + pick(4));
	errno = error;
}

static void fork_in_handlers(void *nothing) {
	struct sigaction action;
	sig_atomic_t last = -1;

	(void)nothing;
	memset(&action, 0, sizeof(action));
	action.sa_handler = at_alarm;
	action.sa_flags = SA_RESTART;
	sigaction(SIGALRM, &action, NULL);
	do {
		const struct itimerval soon = {{0, 0}, {0, 1 + pick(60)}};

		if (alarms != last && alarms >= 0) {
			while (waitpid(-1, NULL, WNOHANG) > 0)
				;
			last = alarms;
			if (setitimer(ITIMER_REAL, &soon, NULL)) {
				skip("setitimer: %s", strerror(errno));
				_exit(0);
			}
		}
		requests(16);
		/* A child that has returned from the handler. */
		if (alarms < 0) {
			requests(64);
			_exit(0);
		}
	} while (!is_enough());
	signal(SIGALRM, SIG_IGN);
	while (waitpid(-1, NULL, 0) > 0)
		;
}

static void *fork_in_thread(void *nothing) {
	const pid_t child = fork_child();

	if (child == 0) {
		units_forked();
		requests(40);
		_exit(0);
	}
	requests(40);
	wait_child(child, "child of a thread that takes random bytes");
	return nothing;
}

/* fork while other threads are in the middle of requests. */
static void fork_beside_threads(void) {
	pthread_t threads[4];
	unsigned count = 0;

	while (count < 4 && pthread_create(&threads[count], NULL, fork_in_thread, NULL) == 0)
		count++;
	while (count)
		pthread_join(threads[--count], NULL);
}

void test_random_fork(void) {
	if (!is_answered())
		return;
	urandom = open_kind(KIND_RANDOM);
	units_create(budget + 10000);
	do {
		family(pick(4));
		fork_beside_threads();
	} while (!is_enough_of(0.6));
	in_child(fork_in_handlers, NULL, "fork in handlers");
	units_compare();
}

/* Chi-square of 256 values: 255 on average, with a standard deviation of 22.6; these limits are ten of those away. */
static void check_distribution(const unsigned long counts[256], const char *name, enum way way) {
	unsigned long sum = 0, missing = 0;
	double chi_square = 0, expected;

	for (unsigned i = 0; i < 256; i++) {
		sum += counts[i];
		missing += counts[i] == 0;
	}
	/* Below, a missing value is possible. */
	if (sum < 256 * 40)
		return;
	expected = sum / 256.0;
	for (unsigned i = 0; i < 256; i++)
		chi_square += (counts[i] - expected) * (counts[i] - expected) / expected;
	expect(missing == 0, "%s by %s: %lu byte values never occur in %lu bytes", name, way_names[way], missing, sum);
	expect(chi_square > 100 && chi_square < 500, "%s by %s: chi-square of %lu bytes is %.0f, and not about 255",
	       name, way_names[way], sum, chi_square);
}

static void count_bytes(enum way way, enum call_id call, unsigned long counts[256]) {
	unsigned char bytes[256];
	const long size = pick(2) ? 16 : 1 + pick(sizeof(bytes));
	long got, zeros = 0;

	memset(bytes, 0, sizeof(bytes));
	if (call == CALL_read)
		got = ask(way, call, urandom, (long)bytes, size);
	else
		got = ask(way, call, (long)bytes, size, 0);
	expect(got == size, "%s of %ld by %s: %ld", calls[call].name, size, way_names[way], got);
	for (long i = 0; i < got; i++) {
		counts[bytes[i]]++;
		zeros = bytes[i] ? 0 : zeros + 1;
		if (zeros == 8)
			wrong("%s by %s: 8 bytes in a row are 0", calls[call].name, way_names[way]);
	}
}

void test_random_statistics(void) {
	static const enum call_id both[] = {CALL_getrandom, CALL_read};
	static unsigned long counts[2][WAYS][256];

	if (!is_answered())
		return;
	urandom = open_kind(KIND_RANDOM);
	do
		for (unsigned call = 0; call < 2; call++)
			for (enum way way = BY_SITE; way < WAYS; way++)
				if (has_way(way, both[call]))
					count_bytes(way, both[call], counts[call][way]);
	while (!is_enough());
	for (unsigned call = 0; call < 2; call++)
		for (enum way way = BY_SITE; way < WAYS; way++)
			if (has_way(way, both[call]))
				check_distribution(counts[call][way], calls[both[call]].name, way);
}
