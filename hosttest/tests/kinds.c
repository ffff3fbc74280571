/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Descriptors that came from elsewhere, and those that cannot be read.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../reads.h"
#include "../tests.h"

static void duplicates(void) {
	static const enum kind kinds[] = {KIND_RANDOM, KIND_ZERO, KIND_END, KIND_EMPTY};
	const enum kind kind = kinds[pick(4)];
	const int file = open_kind(kind);
	const int copies[] = {dup(file), fcntl(file, F_DUPFD, 100), fcntl(file, F_DUPFD_CLOEXEC, 200)};

	close(file);
	check_kind(file, KIND_CLOSED, "closed descriptor");
	for (unsigned i = 0; i < 3; i++) {
		check_kind(copies[i], kind, "duplicate");
		close(copies[i]);
		check_kind(copies[i], KIND_CLOSED, "closed duplicate");
	}
}

static void unreadable(void) {
	const int writing = open_kind(KIND_CLOSED), path = open("/dev/urandom", O_PATH | O_CLOEXEC);
	const int both = open("/dev/urandom", O_RDWR | O_CLOEXEC);

	check_kind(writing, KIND_CLOSED, "O_WRONLY");
	if (path >= 0)
		check_kind(path, KIND_CLOSED, "O_PATH");
	if (both >= 0) {
		fcntl(both, F_SETFL, O_NONBLOCK);
		check_kind(both, KIND_RANDOM, "O_RDWR, then O_NONBLOCK");
	}
	/* Readable ones where unreadable ones were. */
	if (both >= 0 && dup2(both, writing) == writing)
		check_kind(writing, KIND_RANDOM, "O_RDWR in place of O_WRONLY");
	check_kind(-1, KIND_CLOSED, "descriptor -1");
	check_kind(1 << 20, KIND_CLOSED, "descriptor 1048576");
	close(writing);
	close(path);
	close(both);
}

static void high_numbers(void) {
	static const int numbers[] = {1022, 1023, 1024, 1025, 4096};
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit))
		return;
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
	for (unsigned i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		const enum kind kind = pick(2) ? KIND_RANDOM : KIND_ZERO;
		const int file = open_kind(kind);

		if (dup2(file, numbers[i]) == numbers[i]) {
			check_kind(numbers[i], kind, "high descriptor");
			close(numbers[i]);
		}
		check_kind(numbers[i], KIND_CLOSED, "closed high descriptor");
		close(file);
	}
}

static int send_descriptor(int socket, int file) {
	char byte = 0;
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec part = {&byte, 1};
	struct msghdr message = {0};

	memset(&control, 0, sizeof(control));
	message.msg_iov = &part;
	message.msg_iovlen = 1;
	message.msg_control = &control;
	message.msg_controllen = sizeof(control);
	control.header.cmsg_level = SOL_SOCKET;
	control.header.cmsg_type = SCM_RIGHTS;
	control.header.cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(&control.header), &file, sizeof(file));
	return sendmsg(socket, &message, 0) == 1 ? 0 : -1;
}

static int receive_descriptor(int socket) {
	char byte;
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec part = {&byte, 1};
	struct msghdr message = {0};
	int file = -1;

	message.msg_iov = &part;
	message.msg_iovlen = 1;
	message.msg_control = &control;
	message.msg_controllen = sizeof(control);
	if (recvmsg(socket, &message, 0) == 1 && CMSG_FIRSTHDR(&message))
		memcpy(&file, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(file));
	return file;
}

/* A received descriptor takes the number of one that was closed. */
static void passed(void) {
	static const enum kind kinds[] = {KIND_RANDOM, KIND_ZERO, KIND_END, KIND_EMPTY};
	int sockets[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets)) {
		skip("socketpair: %s", strerror(errno));
		return;
	}
	for (unsigned i = 0; i < 4; i++) {
		const int sent = open_kind(kinds[i]), placeholder = open_kind(KIND_RANDOM);
		int received;

		check_kind(placeholder, KIND_RANDOM, "descriptor before one is received");
		close(placeholder);
		if (send_descriptor(sockets[0], sent)) {
			skip("SCM_RIGHTS: %s", strerror(errno));
			break;
		}
		close(sent);
		received = receive_descriptor(sockets[1]);
		check_kind(received, kinds[i], "received descriptor");
		close(received);
		check_kind(received, KIND_CLOSED, "closed received descriptor");
	}
	close(sockets[0]);
	close(sockets[1]);
}

/* descriptor NUMBER KIND NUMBER KIND...: reads what it has inherited. */
void program_descriptor(char **arguments) {
	for (; arguments[0] && arguments[1]; arguments += 2)
		check_kind(atoi(arguments[0]), atoi(arguments[1]), "descriptor over execve");
}

/* One descriptor stays, another is closed by the execution. */
static void executed(void *nothing) {
	const int kept = open_kind(KIND_RANDOM), closed = open_kind(KIND_RANDOM), zero = open_kind(KIND_ZERO);
	struct execution execution;
	char numbers[3][16];
	const int files[] = {kept, closed, zero};

	(void)nothing;
	fcntl(kept, F_SETFD, 0);
	fcntl(zero, F_SETFD, 0);
	for (unsigned i = 0; i < 3; i++) {
		check_kind(files[i], i == 2 ? KIND_ZERO : KIND_RANDOM, "before execve");
		snprintf(numbers[i], sizeof(numbers[i]), "%d", files[i]);
	}
	execution_prepare(&execution, "descriptor",
			  (const char *[]){numbers[0], "1", numbers[1], "8", numbers[2], "2", NULL});
	skip("execve: %s", strerror(-execute(&execution)));
}

static void reopened(void) {
	const int file = open_kind(KIND_RANDOM);
	char path[64];
	int again;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
	again = open(path, O_RDONLY | O_CLOEXEC);
	if (again >= 0)
		check_kind(again, KIND_RANDOM, "/proc/self/fd");
	close(file);
	check_kind(file, KIND_CLOSED, "closed descriptor");
	close(again);
}

void test_descriptor_kinds(void) {
	for (unsigned round = 0; round == 0 || !is_enough(); round++) {
		duplicates();
		unreadable();
		high_numbers();
		passed();
		reopened();
		if (round % 8 == 0)
			in_child(executed, NULL, "descriptors over execve");
	}
}
