/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Threads: their own id, and the one of the process that they have in common.
 */
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../identity.h"
#include "../tests.h"

enum { THREADS = 8 };

static pid_t process;

static void check_thread(const char *when) {
	check_known(ASK_PID, process, when);
	check_known(ASK_TID, truth(SYS_gettid, 0, 0, 0), when);
}

static void *short_life(void *tid) {
	check_thread("new thread");
	*(long *)tid = truth(SYS_gettid, 0, 0, 0);
	if (pick(4) == 0)
		check_identity("thread");
	check_thread("thread before its end");
	return NULL;
}

/* fork by a thread: the child's only thread has the id of the process. */
static void *forking_life(void *tid) {
	const pid_t child = fork_child();

	if (child == 0) {
		process = truth(SYS_getpid, 0, 0, 0);
		check_thread("child of a thread");
		check_known(ASK_TID, process, "child of a thread");
		_exit(0);
	}
	*(long *)tid = truth(SYS_gettid, 0, 0, 0);
	check_thread("thread that has forked");
	wait_child(child, "child of a thread");
	return NULL;
}

static void start_and_end(void) {
	pthread_t threads[THREADS];
	long tids[THREADS] = {0};
	unsigned count = 0;

	check_thread("before threads start");
	for (; count < THREADS; count++) {
		const int error =
		    pthread_create(&threads[count], NULL, pick(8) ? short_life : forking_life, &tids[count]);

		if (error) {
			skip("pthread_create: %s", strerror(error));
			break;
		}
		check_thread("first thread while others start");
	}
	for (unsigned i = 0; i < count; i++) {
		pthread_join(threads[i], NULL);
		expect(tids[i] != process, "a thread has the id of its process");
		check_thread("first thread while others end");
	}
}

static void in_new_process(void *nothing) {
	process = truth(SYS_getpid, 0, 0, 0);
	(void)nothing;
	start_and_end();
	start_and_end();
	check_identity("after threads have ended");
}

void test_threads(void) {
	do
		/* Anew each time, because a host may answer differently before the first thread. */
		in_child(in_new_process, NULL, "process with threads");
	while (!is_enough());
}

static atomic_int first_has_ended;

/* Runs after the first thread has ended: it is a zombie until the process ends. */
static void *survivor(void *parent) {
	const unsigned long rounds = 3 + pick(20);

	while (!atomic_load(&first_has_ended))
		check_thread("thread before the first one ends");
	for (unsigned long i = 0; i < rounds; i++) {
		check_thread("thread after the first one has ended");
		check_known(ASK_PPID, *(pid_t *)parent, "thread after the first one has ended");
	}
	check_questions(OF_PROCESS | BIT(ASK_TID), "thread after the first one has ended");
	start_and_end();
	_exit(0);
}

static void end_first_thread(void *parent) {
	pthread_t thread;

	process = truth(SYS_getpid, 0, 0, 0);
	if (pthread_create(&thread, NULL, survivor, parent)) {
		skip("pthread_create");
		return;
	}
	check_thread("first thread before its end");
	atomic_store(&first_has_ended, 1);
	/* Not pthread_exit, after which a child of musl 1.2.3's fork starts no threads. */
	syscall(SYS_exit, 0);
}

void test_first_thread(void) {
	pid_t parent = truth(SYS_getpid, 0, 0, 0);

	do
		in_child(end_first_thread, &parent, "process without its first thread");
	while (!is_enough());
}
