/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * clock-calls [-k] [-o FILE] CMD [ARGS]: counts the system calls that CMD and its descendants make to read clocks.
 *
 * A seccomp filter notifies this program of each clock_gettime, gettimeofday and time; it counts them and lets them
 * continue. So it works where ptrace is in use, needs no privilege, and sees only real system calls: reads that a vDSO
 * answers never arrive here. At the end it prints one line for each kind of call, `clock_gettime MONOTONIC 12`, and
 * `total 12`, to FILE or stderr. Exits as CMD did.
 *
 * -k: does not count. A system call for a clock that a counter can answer kills the process (SIGSYS).
 */
#include "clocks.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#else
#error "which AUDIT_ARCH is this?"
#endif

/* The number of calls that some architectures lack; no system call has it. */
enum { ABSENT = 0xffff };
#ifndef SYS_gettimeofday
#define SYS_gettimeofday ABSENT
#endif
#ifndef SYS_time
#define SYS_time ABSENT
#endif

/* 32-bit programs on x86-64 use other numbers (arch/x86/entry/syscalls/syscall_32.tbl). */
enum { I386_time = 13, I386_gettimeofday = 78, I386_clock_gettime = 265, I386_clock_gettime64 = 403 };

enum { OTHER_CLOCK = CLOCK_NAMES, COUNTERS };

static void die(const char *what) {
	perror(what);
	exit(125);
}

/* Installs the filter in this process. Returns its listener; with `kill` there is none, and the result is
 * meaningless. */
static int install_filter(int kill) {
	const uint32_t found = kill ? SECCOMP_RET_KILL_PROCESS : SECCOMP_RET_USER_NOTIF;
	const uint32_t id_offset = offsetof(struct seccomp_data, args[0]);
	struct sock_filter code[] = {
	    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
	    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCH, 0, 4),
	    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
	    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_gettimeofday, 14, 0),
	    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_time, 13, 0),
	    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clock_gettime, 6, 13),
	    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_I386, 0, 12),
	    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
	    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, I386_gettimeofday, 9, 0),
	    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, I386_time, 8, 0),
	    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, I386_clock_gettime, 1, 0),
	    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, I386_clock_gettime64, 0, 7),
	    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, id_offset),
	    /* Killing excludes the clocks that only the kernel answers: COARSE, CPU time, dynamic. */
	    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ID_REALTIME, 4, 0),
	    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ID_MONOTONIC, 3, 0),
	    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ID_MONOTONIC_RAW, 2, 0),
	    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ID_BOOTTIME, 1, 0),
	    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ID_TAI, 0, 1),
	    BPF_STMT(BPF_RET | BPF_K, found),
	    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {.len = sizeof(code) / sizeof(code[0]), .filter = code};
	unsigned int flags = kill ? 0 : SECCOMP_FILTER_FLAG_NEW_LISTENER;
	int listener;

	if (!kill) {
		code[17] = code[18]; /* count every clock */
	}
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) {
		die("no_new_privs");
	}
	listener = (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
	if (listener < 0) {
		die("installing a seccomp filter");
	}
	return listener;
}

static void send_fd(int socket, int fd) {
	char control[CMSG_SPACE(sizeof(fd))] = {0}, byte = 0;
	struct iovec data = {&byte, 1};
	struct msghdr message = {
	    .msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);

	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof(fd));
	memcpy(CMSG_DATA(header), &fd, sizeof(fd));
	if (sendmsg(socket, &message, 0) != 1) {
		die("handing over the listener");
	}
}

/* Returns the file descriptor that the child sent, or -1 if it died before. */
static int receive_fd(int socket) {
	int fd = -1;
	char control[CMSG_SPACE(sizeof(fd))] = {0}, byte;
	struct iovec data = {&byte, 1};
	struct msghdr message = {
	    .msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};

	if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) == 1 && CMSG_FIRSTHDR(&message)) {
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
	}
	return fd;
}

static size_t counter_of(const struct seccomp_data *call) {
	const int i386 = call->arch == AUDIT_ARCH_I386;
	const int day = i386 ? I386_gettimeofday : SYS_gettimeofday, seconds = i386 ? I386_time : SYS_time;
	const int id = call->nr == day ? ID_GETTIMEOFDAY : call->nr == seconds ? ID_TIME : (int)call->args[0];

	for (size_t i = 0; i < CLOCK_NAMES; i++) {
		if (clock_names[i].id == id) {
			return i;
		}
	}
	return OTHER_CLOCK;
}

/* Counts until no process is left under the filter. */
static void count_calls(int listener, unsigned long *counts) {
	for (;;) {
		struct pollfd ready = {.fd = listener, .events = POLLIN};
		struct seccomp_notif call = {0};
		struct seccomp_notif_resp go_on = {.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE};

		if (poll(&ready, 1, -1) < 0 && errno != EINTR) {
			die("poll");
		}
		if (ready.revents & POLLIN) {
			/* Both requests fail if the caller was killed meanwhile. */
			if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &call) == 0) {
				counts[counter_of(&call.data)]++;
				go_on.id = call.id;
				ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &go_on);
			}
		} else if (ready.revents & (POLLHUP | POLLERR)) {
			return;
		}
	}
}

static void print_counts(const char *path, const unsigned long *counts) {
	FILE *out = path ? fopen(path, "w") : stderr;
	unsigned long total = 0;

	if (!out) {
		die(path);
	}
	for (size_t i = 0; i < COUNTERS; i++) {
		const char *name = i == OTHER_CLOCK ? "other" : clock_names[i].name;
		int is_function = i != OTHER_CLOCK && clock_names[i].id >= ID_GETTIMEOFDAY;

		if (counts[i]) {
			fprintf(out, "%s%s %lu\n", is_function ? "" : "clock_gettime ", name, counts[i]);
		}
		total += counts[i];
	}
	fprintf(out, "total %lu\n", total);
	fflush(out);
}

static int exec_or_exit_code(char **command) {
	int code;

	execvp(command[0], command);
	code = errno == ENOENT ? 127 : 126;
	perror(command[0]);
	return code;
}

static int exit_as(int status) {
	if (WIFSIGNALED(status)) {
		signal(WTERMSIG(status), SIG_DFL);
		raise(WTERMSIG(status));
	}
	return WEXITSTATUS(status);
}

int main(int argc, char **argv) {
	unsigned long counts[COUNTERS] = {0};
	const char *path = NULL;
	int kill = 0, option, sockets[2], listener, status;
	pid_t child;

	while ((option = getopt(argc, argv, "+ko:")) != -1) {
		switch (option) {
		case 'k':
			kill = 1;
			break;
		case 'o':
			path = optarg;
			break;
		default:
			optind = argc;
		}
	}
	if (optind >= argc) {
		fputs("usage: clock-calls [-k] [-o FILE] CMD [ARGS]\n", stderr);
		return 125;
	}
	if (kill) {
		install_filter(1);
		return exec_or_exit_code(argv + optind);
	}
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets)) {
		die("socketpair");
	}
	child = fork();
	if (child < 0) {
		die("fork");
	}
	if (child == 0) {
		listener = install_filter(0);
		send_fd(sockets[1], listener);
		close(listener);
		return exec_or_exit_code(argv + optind);
	}
	close(sockets[1]);
	listener = receive_fd(sockets[0]);
	if (listener >= 0) {
		count_calls(listener, counts);
		print_counts(path, counts);
	}
	if (waitpid(child, &status, 0) != child) {
		die("waitpid");
	}
	return exit_as(status);
}
