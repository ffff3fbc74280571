/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Asks for the identities of a process, and compares with the truth.
 */
#include "identity.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct {
	const char *name;
	enum call_id call;
	long argument;
} questions[QUESTIONS] = {
    [ASK_PID] = {"getpid", CALL_getpid, 0},
    [ASK_TID] = {"gettid", CALL_gettid, 0},
    [ASK_PPID] = {"getppid", CALL_getppid, 0},
    [ASK_PGID] = {"getpgid(0)", CALL_getpgid, 0},
    [ASK_SID] = {"getsid(0)", CALL_getsid, 0},
    [ASK_UID] = {"getuid", CALL_getuid, 0},
    [ASK_EUID] = {"geteuid", CALL_geteuid, 0},
    [ASK_GID] = {"getgid", CALL_getgid, 0},
    [ASK_EGID] = {"getegid", CALL_getegid, 0},
    [ASK_FSUID] = {"setfsuid(-1)", CALL_setfsuid, -1},
    [ASK_FSGID] = {"setfsgid(-1)", CALL_setfsgid, -1},
    [ASK_RESUID] = {"getresuid", CALL_getresuid, 0},
    [ASK_RESGID] = {"getresgid", CALL_getresgid, 0},
#ifdef SYS_getpgrp
    [ASK_PGRP] = {"getpgrp", CALL_getpgrp, 0},
#endif
};

const char *question_name(enum question question) { return questions[question].name; }

int can_ask(enum question question, enum way way) { return has_way(way, questions[question].call); }

long ask_question(enum question question, enum way way) {
	const enum call_id call = questions[question].call;
	unsigned ids[3] = {~0u, ~0u, ~0u};
	long result;

	if (call != CALL_getresuid && call != CALL_getresgid)
		return ask(way, call, questions[question].argument, 0, 0);
	result = ask(way, call, (long)&ids[0], (long)&ids[1], (long)&ids[2]);
	/* Ids of the tests are small, so this is readable. */
	return result ? result : ids[0] * 10000000000l + ids[1] * 100000l + ids[2];
}

static void check_ways(unsigned mask, const char *when, int with_libc) {
	for (unsigned question = 0; question < QUESTIONS; question++) {
		if (!(mask & BIT(question)))
			continue;
		for (enum way way = BY_SITE; way < WAYS; way++) {
			const int by_libc = way == BY_LIBC || way == BY_SYSCALL;
			long before, got, after;

			if (!can_ask(question, way) || (by_libc && !with_libc))
				continue;
			before = ask_question(question, BY_TRUTH);
			got = ask_question(question, way);
			after = ask_question(question, BY_TRUTH);
			expect_equal(got, got == after ? after : before, when, questions[question].name, way);
		}
	}
}

void check_questions(unsigned mask, const char *when) { check_ways(mask, when, 1); }
void check_identity(const char *when) { check_ways(EVERYTHING, when, 1); }
void check_identity_without_libc(const char *when) { check_ways(EVERYTHING, when, 0); }

void check_known(enum question question, long wanted, const char *when) {
	for (enum way way = BY_TRUTH; way < WAYS; way++)
		if (can_ask(question, way))
			expect_equal(ask_question(question, way), wanted, when, questions[question].name, way);
}

/* Returns a number of the status, counted from 0 in its line; -1 if there is none. */
static long status_field(const char *status, const char *name, int index) {
	const char *line = strstr(status, name);
	char *end;
	long value = -1;

	if (!line)
		return -1;
	for (line += strlen(name); index >= 0; index--, line = end) {
		value = strtol(line, &end, 10);
		if (end == line)
			return -1;
	}
	return value;
}

static int read_status(char *status, size_t size) {
	const int file = open("/proc/thread-self/status", O_RDONLY | O_CLOEXEC);
	ssize_t length = -1;

	if (file >= 0) {
		length = read(file, status, size - 1);
		close(file);
	}
	status[length > 0 ? length : 0] = 0;
	return length > 0;
}

static const struct {
	enum question question;
	const char *field;
	int index;
} status_fields[] = {
    {ASK_PID, "\nTgid:", 0},  {ASK_TID, "\nPid:", 0},  {ASK_PPID, "\nPPid:", 0}, {ASK_PGID, "\nNSpgid:", 0},
    {ASK_SID, "\nNSsid:", 0}, {ASK_UID, "\nUid:", 0},  {ASK_EUID, "\nUid:", 1},  {ASK_FSUID, "\nUid:", 3},
    {ASK_GID, "\nGid:", 0},   {ASK_EGID, "\nGid:", 1}, {ASK_FSGID, "\nGid:", 3},
};

void check_status(const char *when) {
	/* Whether this /proc knows the process by the id that it has. */
	static int is_usable = -1;
	char status[4096];

	if (!is_usable || !read_status(status, sizeof(status)))
		return;
	if (is_usable < 0) {
		is_usable =
		    status_field(status, "\nTgid:", 0) == truth(SYS_getpid, 0, 0, 0) && !strstr(status, "\nNSpid:\t0");
		if (!is_usable)
			return;
	}
	for (unsigned i = 0; i < sizeof(status_fields) / sizeof(status_fields[0]); i++) {
		const long wanted = status_field(status, status_fields[i].field, status_fields[i].index);
		const enum question question = status_fields[i].question;

		if (wanted < 0)
			continue;
		for (enum way way = BY_TRUTH; way < WAYS; way++)
			if (can_ask(question, way))
				expect(ask_question(question, way) == wanted, "%s: %s by %s is not %ld, as in /proc",
				       when, questions[question].name, way_names[way], wanted);
	}
}
