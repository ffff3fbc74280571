/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * User and group ids: by libc's functions, which change all threads, and by system calls, which change one.
 */
#include <errno.h>
#include <grp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <unistd.h>

#include "../identity.h"
#include "../tests.h"

/* A function of libc for one line. */
#define FUNCTION(name, expression)                                                                                     \
	static long name(void) { return expression; }
FUNCTION(resuid, setresuid(1001, 1002, 0))
FUNCTION(root_resuid, setresuid(0, 0, 0))
FUNCTION(reuid, setreuid(1003, 0))
FUNCTION(root_reuid, setreuid(0, 0))
FUNCTION(euid, seteuid(1004))
FUNCTION(root_euid, seteuid(0))
FUNCTION(resgid, setresgid(1001, 1002, 1003))
FUNCTION(root_resgid, setresgid(0, 0, 0))
FUNCTION(regid, setregid(1004, 1005))
FUNCTION(root_regid, setregid(0, 0))
FUNCTION(gid, setgid(1006))
FUNCTION(root_gid, setgid(0))

/* The same for one thread. */
static long raw(long number, long a, long b, long c) { return syscall(number, a, b, c); }
FUNCTION(raw_resuid, raw(SYS_setresuid, 1001, 1002, 0))
FUNCTION(raw_root_resuid, raw(SYS_setresuid, 0, 0, 0))
FUNCTION(raw_reuid, raw(SYS_setreuid, 1003, 0, 0))
FUNCTION(raw_root_reuid, raw(SYS_setreuid, 0, 0, 0))
FUNCTION(raw_resgid, raw(SYS_setresgid, 1001, 1002, 1003))
FUNCTION(raw_root_resgid, raw(SYS_setresgid, 0, 0, 0))
FUNCTION(raw_regid, raw(SYS_setregid, 1004, 1005, 0))
FUNCTION(raw_root_regid, raw(SYS_setregid, 0, 0, 0))
FUNCTION(raw_gid, raw(SYS_setgid, 1006, 0, 0))
FUNCTION(raw_root_gid, raw(SYS_setgid, 0, 0, 0))
FUNCTION(raw_fsuid, raw(SYS_setfsuid, 1007, 0, 0))
FUNCTION(raw_root_fsuid, raw(SYS_setfsuid, 0, 0, 0))
FUNCTION(raw_fsgid, raw(SYS_setfsgid, 1008, 0, 0))
FUNCTION(raw_root_fsgid, raw(SYS_setfsgid, 0, 0, 0))

static const struct transition of_all_threads[] = {
    {"setresuid", resuid, root_resuid}, {"setreuid", reuid, root_reuid}, {"seteuid", euid, root_euid},
    {"setresgid", resgid, root_resgid}, {"setregid", regid, root_regid}, {"setgid", gid, root_gid},
};
static const struct transition of_one_thread[] = {
    {"raw setresuid", raw_resuid, raw_root_resuid}, {"raw setreuid", raw_reuid, raw_root_reuid},
    {"raw setresgid", raw_resgid, raw_root_resgid}, {"raw setregid", raw_regid, raw_root_regid},
    {"raw setgid", raw_gid, raw_root_gid},          {"raw setfsuid", raw_fsuid, raw_root_fsuid},
    {"raw setfsgid", raw_fsgid, raw_root_fsgid},
};
enum {
	ALL_THREADS = sizeof(of_all_threads) / sizeof(of_all_threads[0]),
	ONE_THREAD = sizeof(of_one_thread) / sizeof(of_one_thread[0])
};

static int is_root(void) {
	if (truth(SYS_geteuid, 0, 0, 0) == 0 && truth(SYS_getuid, 0, 0, 0) == 0)
		return 1;
	skip("only root may change its ids");
	return 0;
}

struct part {
	const struct transition *transition;
	double share;
};

static void transit(void *part) {
	const struct part *these = part;

	race_transition(these->transition, CREDENTIALS | BIT(ASK_PID) | BIT(ASK_PPID), these->share);
}

/* Gives up root for good, with threads. */
static void drop_root(void *nothing) {
	struct race *race = race_new("thread beside the last setgid and setuid", CREDENTIALS);
	struct readers readers;
	pid_t child;

	(void)nothing;
	race_learn(race, 0);
	race_learn(race, 1);
	race->values[1][ASK_UID] = race->values[1][ASK_EUID] = race->values[1][ASK_FSUID] = 1009;
	race->values[1][ASK_RESUID] = 1009 * 10000000000l + 1009 * 100000l + 1009;
	readers_start(&readers, race);
	race_begin(race);
	if (setuid(1009))
		atomic_fetch_add(&race->begun, 1), skip("setuid: %s", strerror(errno));
	race_done(race);
	check_questions(CREDENTIALS, "after setuid");
	child = fork_child();
	if (child == 0) {
		check_known(ASK_UID, 1009, "child after setuid");
		check_identity("child after setuid");
		_exit(0);
	}
	wait_child(child, "child after setuid");
	for (int i = 0; i < 20; i++)
		check_questions(CREDENTIALS, "after setuid");
	readers_join(&readers, race);
}

void test_credentials(void) {
	if (!is_root())
		return;
	for (unsigned i = 0; i < ALL_THREADS; i++) {
		struct part part = {&of_all_threads[i], (i + 1.0) / ALL_THREADS};

		in_child(transit, &part, of_all_threads[i].name);
	}
	in_child(drop_root, NULL, "setuid");
}

/* A thread that changes its own ids only: it reads what it has set. */
static void *change_own(void *argument) {
	const struct part *part = argument;
	const struct transition *transition = part->transition;

	do {
		transition->forth();
		check_questions(CREDENTIALS, transition->name);
		if (pick(2))
			transition->forth();
		if (pick(4) == 0)
			check_status(transition->name);
		transition->back();
		check_questions(CREDENTIALS, "raw change back");
	} while (!is_enough_of(part->share));
	transition->forth();
	return NULL;
}

/* The others read what they had. */
static void change_one(void *argument) {
	const struct part *part = argument;
	struct race *race = race_new(part->transition->name, CREDENTIALS | BIT(ASK_PID));
	struct readers readers;
	pthread_t thread;

	race_learn(race, 0);
	readers_start(&readers, race);
	if (pthread_create(&thread, NULL, change_own, argument)) {
		skip("pthread_create");
		_exit(0);
	}
	for (unsigned i = 0; i < 10; i++)
		race_ask(race);
	pthread_join(thread, NULL);
	/* Its ids ended with it. */
	for (unsigned i = 0; i < 10; i++)
		race_ask(race);
	readers_join(&readers, race);
	/* And alone. */
	part->transition->forth();
	check_identity("raw change by the only thread");
	part->transition->back();
	check_identity("raw change back by the only thread");
	race_free(race);
}

/* A thread with ids of its own that forks: the child has the thread's. */
static void *fork_with_other_ids(void *nothing) {
	pid_t child;

	(void)nothing;
	raw_resuid();
	child = fork_child();
	if (child == 0) {
		check_known(ASK_UID, 1001, "child of a thread with other ids");
		check_known(ASK_EUID, 1002, "child of a thread with other ids");
		check_identity("child of a thread with other ids");
		_exit(0);
	}
	wait_child(child, "child of a thread with other ids");
	return NULL;
}

static void start_thread_with_other_ids(void *nothing) {
	pthread_t thread;

	if (pthread_create(&thread, NULL, fork_with_other_ids, nothing))
		return;
	pthread_join(thread, NULL);
	check_identity("after a thread with other ids");
	/* A new thread has the ids of the one that starts it. */
	raw_fsuid();
	if (pthread_create(&thread, NULL, fork_with_other_ids, nothing))
		return;
	check_known(ASK_FSUID, 1007, "thread that has set its own");
	pthread_join(thread, NULL);
	check_identity("after another thread with other ids");
}

void test_thread_credentials(void) {
	if (!is_root())
		return;
	in_child(start_thread_with_other_ids, NULL, "thread with other ids");
	for (unsigned i = 0; i < ONE_THREAD; i++) {
		struct part part = {&of_one_thread[i], (i + 1.0) / ONE_THREAD};

		in_child(change_one, &part, of_one_thread[i].name);
	}
}
