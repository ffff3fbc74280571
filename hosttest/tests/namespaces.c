/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Namespaces: the same process, user or group has another number.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../identity.h"
#include "../tests.h"

static int write_file(const char *path, const char *text) {
	const int file = open(path, O_WRONLY | O_CLOEXEC);
	ssize_t written = -1;

	if (file >= 0) {
		written = write(file, text, strlen(text));
		close(file);
	}
	return written == (ssize_t)strlen(text) ? 0 : -1;
}

static int map_ids(pid_t process, int inside, long uid, long gid) {
	char path[64], text[64];

	snprintf(path, sizeof(path), "/proc/%d/setgroups", process);
	write_file(path, "deny");
	snprintf(path, sizeof(path), "/proc/%d/uid_map", process);
	snprintf(text, sizeof(text), "%d %ld 1\n", inside, uid);
	if (write_file(path, text))
		return -1;
	snprintf(path, sizeof(path), "/proc/%d/gid_map", process);
	snprintf(text, sizeof(text), "%d %ld 1\n", inside, gid);
	return write_file(path, text);
}

static int enter_user_namespace(void) {
	if (unshare(CLONE_NEWUSER) == 0)
		return 0;
	skip("unshare(CLONE_NEWUSER): %s", strerror(errno));
	return -1;
}

/* A write to a file changes its ids, and no call that names them. */
static void map_itself(void *nothing) {
	const long uid = truth(SYS_geteuid, 0, 0, 0), gid = truth(SYS_getegid, 0, 0, 0);

	(void)nothing;
	check_identity("before unshare(CLONE_NEWUSER)");
	if (enter_user_namespace())
		return;
	check_identity("in a user namespace without a map");
	if (map_ids(truth(SYS_getpid, 0, 0, 0), 5, uid, gid)) {
		skip("writing uid_map and gid_map: %s", strerror(errno));
		return;
	}
	check_known(ASK_EUID, 5, "in a user namespace with a map");
	check_known(ASK_EGID, 5, "in a user namespace with a map");
	check_identity("in a user namespace with a map");
	if (fork_child() == 0) {
		check_identity("child in a user namespace");
		_exit(0);
	}
	wait_child(-1, "child in a user namespace");
}

/* Another process writes the map, while threads ask. */
static void be_mapped(struct race *race, int ready, int mapped) {
	struct readers readers;
	char byte = 0;

	if (enter_user_namespace())
		_exit(0);
	race_learn(race, 0);
	race_learn(race, 1);
	/* Between the two maps only one of them is there; only single ids are asked. */
	race->values[1][ASK_UID] = race->values[1][ASK_EUID] = race->values[1][ASK_FSUID] = 7;
	race->values[1][ASK_GID] = race->values[1][ASK_EGID] = race->values[1][ASK_FSGID] = 7;
	readers_start(&readers, race);
	if (write(ready, &byte, 1) != 1 || read(mapped, &byte, 1) != 1)
		_exit(0);
	check_identity("in a user namespace that another process has mapped");
	readers_join(&readers, race);
	_exit(0);
}

static void map_child(void) {
	struct race *race =
	    race_new("user namespace that another process maps", CREDENTIALS & ~(BIT(ASK_RESUID) | BIT(ASK_RESGID)));
	const long uid = truth(SYS_geteuid, 0, 0, 0), gid = truth(SYS_getegid, 0, 0, 0);
	int ready[2], mapped[2];
	char byte = 0;
	pid_t child;

	if (pipe(ready) || pipe(mapped)) {
		skip("pipe: %s", strerror(errno));
		return;
	}
	child = fork_child();
	if (child == 0) {
		close(ready[0]);
		close(mapped[1]);
		be_mapped(race, ready[1], mapped[0]);
	}
	close(ready[1]);
	close(mapped[0]);
	if (read(ready[0], &byte, 1) == 1) {
		race_begin(race);
		if (map_ids(child, 7, uid, gid))
			skip("writing the maps of a child: %s", strerror(errno));
		else
			race_done(race);
		if (write(mapped[1], &byte, 1) != 1)
			skip("write: %s", strerror(errno));
	}
	wait_child(child, "child in a mapped user namespace");
	close(ready[0]);
	close(mapped[1]);
	race_free(race);
}

void test_user_namespace(void) {
	do {
		in_child(map_itself, NULL, "user namespace");
		map_child();
	} while (!is_enough() && !results->skipped[0]);
}

static void check_first_of_namespace(void) {
	check_known(ASK_PID, 1, "first process of a PID namespace");
	check_known(ASK_TID, 1, "first process of a PID namespace");
	check_known(ASK_PPID, 0, "first process of a PID namespace");
	check_identity("first process of a PID namespace");
	if (fork_child() == 0) {
		check_known(ASK_PPID, 1, "child in a PID namespace");
		check_identity("child in a PID namespace");
		_exit(0);
	}
	wait_child(-1, "child in a PID namespace");
	_exit(0);
}

static void unshare_pid_namespace(void *nothing) {
	pid_t child;

	(void)nothing;
	if (unshare(CLONE_NEWPID)) {
		skip("unshare(CLONE_NEWPID): %s", strerror(errno));
		return;
	}
	check_known(ASK_PID, truth(SYS_getpid, 0, 0, 0), "after unshare(CLONE_NEWPID)");
	check_identity("after unshare(CLONE_NEWPID)");
	child = fork_child();
	if (child == 0)
		check_first_of_namespace();
	wait_child(child, "first process of a PID namespace");
	check_identity("parent of a PID namespace");
}

void test_pid_namespace(void) {
	pid_t child;

	do {
		in_child(unshare_pid_namespace, NULL, "PID namespace");
		child = syscall(SYS_clone, CLONE_NEWPID | SIGCHLD, 0, 0, 0, 0);
		if (child == 0)
			check_first_of_namespace();
		if (child < 0) {
			skip("clone(CLONE_NEWPID): %s", strerror(errno));
			return;
		}
		wait_child(child, "child of clone(CLONE_NEWPID)");
		check_identity("parent of clone(CLONE_NEWPID)");
	} while (!is_enough() && !results->skipped[0]);
}

/* Enters a namespace of the process, which is another one's. */
static int enter(pid_t process, const char *name, int kind) {
	char path[64];
	int file, result;

	snprintf(path, sizeof(path), "/proc/%d/ns/%s", process, name);
	file = open(path, O_RDONLY | O_CLOEXEC);
	if (file < 0) {
		skip("%s: %s", path, strerror(errno));
		return -1;
	}
	result = setns(file, kind);
	if (result)
		skip("setns: %s", strerror(errno));
	close(file);
	return result;
}

static void enter_namespaces(void *process) {
	const pid_t owner = *(pid_t *)process;

	check_identity("before setns");
	if (enter(owner, "pid", CLONE_NEWPID))
		return;
	check_identity("after setns of a PID namespace");
	if (fork_child() == 0) {
		check_known(ASK_PPID, 0, "child after setns");
		check_identity("child after setns");
		_exit(0);
	}
	wait_child(-1, "child after setns");
	if (enter(owner, "user", CLONE_NEWUSER))
		return;
	check_known(ASK_UID, 9, "after setns of a user namespace");
	check_identity("after setns of a user namespace");
	if (fork_child() == 0) {
		check_identity("child after setns of a user namespace");
		_exit(0);
	}
	wait_child(-1, "child after setns of a user namespace");
}

void test_setns(void) {
	int end[2];
	char byte;
	pid_t owner;

	if (truth(SYS_geteuid, 0, 0, 0)) {
		skip("only root may enter namespaces");
		return;
	}
	if (pipe(end)) {
		skip("pipe: %s", strerror(errno));
		return;
	}
	owner = syscall(SYS_clone, CLONE_NEWPID | CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0);
	if (owner == 0) {
		close(end[1]);
		_exit(read(end[0], &byte, 1) != 0);
	}
	if (owner < 0 || map_ids(owner, 9, 0, 0))
		skip("clone(CLONE_NEWPID|CLONE_NEWUSER) and its maps: %s", strerror(errno));
	else
		do
			in_child(enter_namespaces, &owner, "setns");
		while (!is_enough() && !results->skipped[0]);
	close(end[1]);
	if (owner > 0)
		wait_child(owner, "owner of namespaces");
}
