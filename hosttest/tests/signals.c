/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Handlers that interrupt calls and make calls themselves, and that do not return (siglongjmp).
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include "../identity.h"
#include "../reads.h"
#include "../tests.h"

static volatile sig_atomic_t signals, may_jump;
static sigjmp_buf before_call;
static int urandom;

static int arm(void) {
	const struct itimerval soon = {{0, 0}, {0, 1 + pick(60)}};

	return setitimer(ITIMER_REAL, &soon, NULL);
}

/* Asks by picked ways, also in the handler. Nothing changes during it, so the truth is one value. */
static void ask_some(const char *when) {
	const enum question question = pick(QUESTIONS);
	unsigned char bytes[16];
	enum way way;

	do
		way = pick(WAYS);
	while (!can_ask(question, way));
	expect_equal(ask_question(question, way), ask_question(question, BY_TRUTH), when, question_name(question), way);
	if (!has_way(way, CALL_getrandom))
		return;
	memset(bytes, 0, sizeof(bytes));
	if (pick(2)) {
		expect_equal(ask(way, CALL_getrandom, (long)bytes, sizeof(bytes), 0), sizeof(bytes), when, "getrandom",
			     way);
		expect(bytes[0] | bytes[3] | bytes[7] | bytes[11] | bytes[14] | bytes[15],
		       "%s: getrandom by %s: zeros instead of random bytes", when, way_names[way]);
	} else {
		const enum kind got = read_kind(urandom, way);

		expect(got == KIND_RANDOM, "%s: read by %s: %s", when, way_names[way], kind_name(got));
	}
}

static void at_alarm(int signal) {
	const int error = errno;

	(void)signal;
	signals++;
	ask_some("handler");
	ask_some("handler");
	if (may_jump && pick(2))
		siglongjmp(before_call, 1);
	errno = error;
}

static int handle_alarms(void) {
	struct sigaction action;

	memset(&action, 0, sizeof(action));
	action.sa_handler = at_alarm;
	action.sa_flags = SA_RESTART;
	return sigaction(SIGALRM, &action, NULL);
}

/* `pick` is not safe against signals, but any number will do. */
static void interrupted(int jumps, double share) {
	volatile sig_atomic_t last = -1;

	if (handle_alarms()) {
		skip("sigaction: %s", strerror(errno));
		return;
	}
	do {
		if (sigsetjmp(before_call, 1) == 0)
			may_jump = jumps;
		/* The next one comes only after the last one, so that slow calls are made as well. */
		if (signals != last) {
			last = signals;
			if (arm()) {
				skip("setitimer: %s", strerror(errno));
				break;
			}
		}
		ask_some(jumps ? "calls that handlers jump out of" : "interrupted calls");
	} while (!is_enough_of(share));
	may_jump = 0;
	while (signals == last && last >= 0)
		nap(1000);
	signal(SIGALRM, SIG_DFL);
	alarm(SECONDS_CHILD);
	expect(signals > 0, "no signal has arrived");
	for (unsigned i = 0; i < 100; i++)
		ask_some("after the signals");
}

static void alone(void *nothing) {
	(void)nothing;
	interrupted(0, 0.3);
	interrupted(1, 0.6);
}

static void *calls_beside(void *is_over) {
	is_beside = 1;
	while (!atomic_load((atomic_int *)is_over))
		ask_some("thread beside signals");
	return NULL;
}

/* The signals go to any of the threads. */
static void beside_threads(void *nothing) {
	atomic_int is_over = 0;
	pthread_t thread;

	(void)nothing;
	if (pthread_create(&thread, NULL, calls_beside, &is_over)) {
		skip("pthread_create");
		return;
	}
	interrupted(0, 1);
	atomic_store(&is_over, 1);
	pthread_join(thread, NULL);
}

void test_signals(void) {
	urandom = open_kind(KIND_RANDOM);
	in_child(alone, NULL, "signals");
	in_child(beside_threads, NULL, "signals with threads");
}
