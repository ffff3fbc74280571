/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "conversation.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "calls.h"
#include "text.h"

/* Time between two attempts to connect. */
enum { RETRY_US = 200 };

/* Waits until the socket can be read, or so many microseconds; without a socket for that time. Returns ppoll's. */
static long wait_for(struct pollfd *socket, uint64_t us) {
	/* The kernel's struct timespec: two longs. */
	long timeout[2] = {(long)(us / 1000000), (long)(us % 1000000 * 1000)};

	return fp_syscall6(FP_NR_ppoll, (long)socket, socket ? 1 : 0, (long)timeout, 0, 0, 0);
}

/*
 * Connects as soon as the daemon's queue has room. It does not wait in connect(2): threads that do are served in their
 * order, and another user may have thousands of them.
 */
static long connect_to(int fd, const char *path, uint32_t timeout_ms) {
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	size_t length = 0;
	long error;

	for (; path[length]; length++) {
		if (length == sizeof(address.sun_path) - 1)
			return -ENAMETOOLONG;
		address.sun_path[length] = path[length];
	}
	for (uint64_t left = timeout_ms * UINT64_C(1000) / RETRY_US;; left--) {
		error = fp_syscall4(FP_NR_connect, fd, (long)&address, sizeof(address), 0);
		if (error != -EAGAIN || !left)
			return error;
		wait_for(NULL, RETRY_US);
	}
}

/* In a user namespace, root of the host is shown as this user; only root can listen in the default directory. */
enum { UNMAPPED = 65534 };
static const char DIRECTORY[] = "/run/fastpath/";

/* Checks that the daemon is root's or this user's: another one could give any time, and change it. */
static bool is_trusted(int fd, const char *path, uint32_t own, struct why *why) {
	/* struct ucred: process, user, group */
	uint32_t peer[3];
	uint32_t size = sizeof(peer);
	long error = fp_syscall6(FP_NR_getsockopt, fd, SOL_SOCKET, SO_PEERCRED, (long)peer, (long)&size, 0);

	if (error)
		return fp_because(why, "getsockopt(SO_PEERCRED)", error);
	return !peer[1] || peer[1] == own || (peer[1] == UNMAPPED && fp_after(path, DIRECTORY)) ||
	       fp_because(why, "another user listens at the socket: only root's or this user's fastpathd is used", 0);
}

/* Room for exactly this many descriptors: the kernel drops what does not fit. */
enum { CONTROL_SIZE = CMSG_LEN(FP_DESCRIPTORS * sizeof(int)) };
union control {
	struct cmsghdr header;
	char room[CONTROL_SIZE];
};

static void take_descriptors(const struct msghdr *message, union control *control, struct prepared *prepared) {
	const struct cmsghdr *header = &control->header;

	if (message->msg_controllen < CMSG_LEN(0) || header->cmsg_level != SOL_SOCKET ||
	    header->cmsg_type != SCM_RIGHTS)
		return;
	size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
	const int *given = (const void *)CMSG_DATA(&control->header);
	for (size_t i = 0; i < count && i < FP_DESCRIPTORS; i++)
		prepared->fd[i] = given[i];
}

static long receive(int fd, struct prepared *prepared, int *flags) {
	struct iovec parts = {&prepared->answer, sizeof(prepared->answer)};
	union control control = {.room = {0}};
	struct msghdr message = {
	    .msg_iov = &parts,
	    .msg_iovlen = 1,
	    .msg_control = &control,
	    .msg_controllen = CONTROL_SIZE,
	};

	long size = fp_syscall4(FP_NR_recvmsg, fd, (long)&message, MSG_CMSG_CLOEXEC, 0);
	if (!fp_failed(size))
		take_descriptors(&message, &control, prepared);
	*flags = message.msg_flags;
	return size;
}

static bool is_complete(long size, int flags, uint32_t operation, const struct prepared *prepared, struct why *why) {
	const struct fastpathd_answer *answer = &prepared->answer;
	const int last = operation == FASTPATHD_PREPARE ? FP_PLAN_FD : FP_MAILBOX_FD;

	if (size != sizeof(*answer) || flags & MSG_TRUNC || answer->magic != FASTPATHD_MAGIC)
		return fp_because(why, "the answer is not from fastpathd", 0);
	if (answer->error) {
		/* The sentence may lack its final 0. */
		for (int i = 0; i < FASTPATHD_SENTENCE - 1; i++)
			why->said[i] = answer->sentence[i];
		return fp_because(why, "fastpathd declines", 0);
	}
	if (answer->version != FASTPATHD_VERSION || answer->operation != operation)
		return fp_because(why, "this fastpathd has another version than this library", 0);
	if (flags & MSG_CTRUNC || prepared->fd[last] < 0)
		return fp_because(why, "descriptors did not arrive: there may be no room for them (ulimit -n)", 0);
	return true;
}

static bool converse(int fd, const struct daemon *daemon, const struct fastpathd_request *request,
		     struct prepared *prepared, struct why *why) {
	struct iovec parts = {(void *)request, sizeof(*request)};
	struct msghdr message = {.msg_iov = &parts, .msg_iovlen = 1};
	struct pollfd answer = {.fd = fd, .events = POLLIN};
	int flags = 0;

	long error = connect_to(fd, daemon->path, daemon->timeout_ms);
	if (error)
		return fp_because(why, "no daemon answers at its socket", error);
	if (!is_trusted(fd, daemon->path, daemon->user, why))
		return false;
	error = fp_syscall4(FP_NR_sendmsg, fd, (long)&message, MSG_NOSIGNAL, 0);
	if (fp_failed(error))
		return fp_because(why, "the daemon takes no request", error);
	long size = wait_for(&answer, daemon->timeout_ms * UINT64_C(1000));
	if (!fp_failed(size))
		size = receive(fd, prepared, &flags);
	if (fp_failed(size))
		return fp_because(why, "the daemon does not answer", size);
	return is_complete(size, flags, request->operation, prepared, why);
}

bool fp_prepare(const struct daemon *daemon, const struct fastpathd_request *request, struct prepared *prepared,
		struct why *why) {
	for (int i = 0; i < FP_DESCRIPTORS; i++)
		prepared->fd[i] = -1;
	long fd = fp_syscall4(FP_NR_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, 0);
	if (fp_failed(fd))
		return fp_because(why, "socket", fd);
	bool done = converse((int)fd, daemon, request, prepared, why);
	fp_close((int)fd);
	if (!done)
		fp_let_go(prepared);
	return done;
}

void fp_let_go(const struct prepared *prepared) {
	for (int i = 0; i < FP_DESCRIPTORS; i++)
		if (prepared->fd[i] >= 0)
			fp_close(prepared->fd[i]);
}
