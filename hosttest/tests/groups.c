/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Process groups and sessions, and parents.
 */
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../identity.h"
#include "../tests.h"

static pid_t inherited_group;

static long own_group(void) { return setpgid(0, 0); }
static long old_group(void) { return setpgid(0, inherited_group); }

static void change_own_group(void *nothing) {
	static const struct transition transition = {"setpgid", own_group, old_group};

	(void)nothing;
	inherited_group = truth(SYS_getpgid, 0, 0, 0);
	race_transition(&transition, OF_PROCESS, 0.4);
}

/* The child's threads ask while the parent changes its group. */
static void change_childs_group(void *nothing) {
	struct race *race = race_new("setpgid by the parent", OF_PROCESS);
	const pid_t group = truth(SYS_getpgid, 0, 0, 0), child = fork_child();

	(void)nothing;
	if (child == 0) {
		struct readers readers;

		race_learn(race, 0);
		race_learn(race, 1);
		race->values[1][ASK_PGID] = truth(SYS_getpid, 0, 0, 0);
#ifdef SYS_getpgrp
		race->values[1][ASK_PGRP] = race->values[1][ASK_PGID];
#endif
		readers_start(&readers, race);
		race_reader(race);
		readers_join(&readers, race);
		_exit(0);
	}
	while (atomic_load(&race->readers) <= READERS && waitpid(child, NULL, WNOHANG) == 0)
		nap(100);
	do {
		for (unsigned i = 0; i < 2; i++) {
			race_begin(race);
			if (setpgid(child, i ? group : child)) {
				skip("setpgid of a child: %s", strerror(errno));
				atomic_store(&race->is_over, 1);
				_exit(0);
			}
			race_done(race);
			expect_equal(ask(BY_SITE, CALL_getpgid, child, 0, 0), i ? group : child, "parent",
				     "getpgid of a child", BY_SITE);
			nap(pick(300));
		}
	} while (!is_enough_of(0.8));
	atomic_store(&race->is_over, 1);
	wait_child(child, "child whose group is changed");
}

static long new_session(void) { return setsid(); }

/* A session is for ever: each child begins one, while its threads ask. */
static void begin_session(void *nothing) {
	struct race *race = race_new("setsid", OF_PROCESS);
	struct readers readers;
	pid_t child;

	(void)nothing;
	race_learn(race, 0);
	race_learn(race, 1);
	race->values[1][ASK_PGID] = race->values[1][ASK_SID] = race->values[1][ASK_PID];
#ifdef SYS_getpgrp
	race->values[1][ASK_PGRP] = race->values[1][ASK_PID];
#endif
	if (pick(2))
		readers_start(&readers, race);
	race_begin(race);
	if (new_session() < 0) {
		skip("setsid: %s", strerror(errno));
		_exit(0);
	}
	race_done(race);
	for (unsigned i = 0; i < 10; i++)
		race_ask(race);
	check_identity("after setsid");
	check_status("after setsid");
	child = fork_child();
	if (child == 0) {
		check_identity("child in a new session");
		_exit(0);
	}
	wait_child(child, "child in a new session");
	if (atomic_load(&race->readers))
		readers_join(&readers, race);
}

void test_groups(void) {
	in_child(change_own_group, NULL, "setpgid");
	in_child(change_childs_group, NULL, "setpgid of a child");
	do
		in_child(begin_session, NULL, "setsid");
	while (!is_enough());
}

/* Asks for its parent until that has ended and been replaced. */
static void be_orphaned(struct race *race, pid_t reaper) {
	struct readers readers;

	race_learn(race, 0);
	race_learn(race, 1);
	race->values[1][ASK_PPID] = reaper;
	readers_start(&readers, race);
	while (!atomic_load(&race->done))
		race_ask(race);
	for (unsigned i = 0; i < 20; i++)
		race_ask(race);
	check_identity("orphan");
	check_status("orphan");
	readers_join(&readers, race);
	_exit(0);
}

static void *wait_for_the_end(void *race) {
	while (!atomic_load(&((struct race *)race)->done))
		nap(50);
	return NULL;
}

/* The middle one of three processes ends, by its first thread or after that. */
static void lose_parent(pid_t reaper) {
	struct race *race = race_new("child of a parent that ends", OF_PROCESS);
	const pid_t parent = fork_child();
	pid_t ended;

	if (parent == 0) {
		pthread_t thread;

		if (fork_child() == 0)
			be_orphaned(race, reaper);
		if (pick(2))
			pthread_create(&thread, NULL, wait_for_the_end, race);
		while (atomic_load(&race->readers) < READERS)
			nap(100);
		race_begin(race);
		_exit(0);
	}
	wait_child(parent, "parent of an orphan");
	race_done(race);
	while ((ended = waitpid(-1, NULL, 0)) < 0 && errno == EINTR)
		;
	expect(ended > 0, "the orphan has not become a child of its reaper");
	race_free(race);
}

void test_parent(void) {
	if (prctl(PR_SET_CHILD_SUBREAPER, 1)) {
		skip("prctl(PR_SET_CHILD_SUBREAPER): %s", strerror(errno));
		return;
	}
	do
		lose_parent(truth(SYS_getpid, 0, 0, 0));
	while (!is_enough());
}
