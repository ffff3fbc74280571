/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Prints the state that a program inherits from its starter, one `name value` a line, so that two starts can be
 * compared.
 *
 * Values that always differ from one start to the next are made relative: an id equal to this process's own reads
 * `self`, and pipes, sockets and the like are named without their inode. Only the first line, the PID, differs between
 * two starts by the same parent.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static void print_id(const char *name, long id) {
	if (id == getpid()) {
		printf("%s self\n", name);
	} else {
		printf("%s %ld\n", name, id);
	}
}

/* FNV-1a: sufficient to show that two strings differ, without putting the environment into a log. */
static uint64_t hash(char **strings, size_t *count) {
	uint64_t h = 0xcbf29ce484222325;

	for (*count = 0; strings[*count]; (*count)++) {
		const char *s = strings[*count];

		do {
			h = (h ^ (unsigned char)*s) * 0x100000001b3;
		} while (*s++);
	}
	return h;
}

static void print_strings(const char *name, char **strings) {
	size_t count;
	uint64_t h = hash(strings, &count);

	printf("%s %zu strings, hash %016llx\n", name, count, (unsigned long long)h);
}

static void print_ids(void) {
	/* tty_nr and tpgid are fields 7 and 8 of stat; the name before them may contain blanks. */
	char text[1024] = {0};
	FILE *stat = fopen("/proc/self/stat", "r");
	long tty = 0, tpgid = 0;

	printf("pid %d\n", (int)getpid());
	print_id("ppid", getppid());
	print_id("pgid", getpgrp());
	print_id("sid", getsid(0));
	if (stat && fread(text, 1, sizeof(text) - 1, stat) > 0 && strrchr(text, ')')) {
		sscanf(strrchr(text, ')') + 1, " %*c %*d %*d %*d %ld %ld", &tty, &tpgid);
	}
	if (stat) {
		fclose(stat);
	}
	printf("tty %ld\n", tty);
	print_id("tpgid", tpgid);
}

static void print_link(const char *name, const char *path) {
	char target[PATH_MAX];
	ssize_t length = readlink(path, target, sizeof(target) - 1);

	target[length < 0 ? 0 : length] = 0;
	printf("%s %s\n", name, length < 0 ? strerror(errno) : target);
}

static int by_number(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

static void print_fd(int fd) {
	char path[64], target[PATH_MAX];
	ssize_t length;
	char *inode;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	length = readlink(path, target, sizeof(target) - 1);
	target[length < 0 ? 0 : length] = 0;
	inode = target[0] == '/' ? NULL : strstr(target, ":[");
	if (inode) {
		*inode = 0;
	}
	printf("fd %d %s flags %o close-on-exec %d position %lld\n", fd, target, fcntl(fd, F_GETFL), fcntl(fd, F_GETFD),
	       inode ? -1LL : (long long)lseek(fd, 0, SEEK_CUR));
}

static void print_fds(void) {
	int fds[4096];
	size_t count = 0;
	DIR *dir = opendir("/proc/self/fd");
	struct dirent *entry;

	while (dir && (entry = readdir(dir)) && count < sizeof(fds) / sizeof(fds[0])) {
		if (entry->d_name[0] != '.' && atoi(entry->d_name) != dirfd(dir)) {
			fds[count++] = atoi(entry->d_name);
		}
	}
	if (dir) {
		closedir(dir);
	}
	qsort(fds, count, sizeof(fds[0]), by_number);
	for (size_t i = 0; i < count; i++) {
		print_fd(fds[i]);
	}
}

/* The lines of /proc/self/status that a starter can influence. */
static const char status_lines[] =
    " Name Umask TracerPid Uid Gid Groups Threads SigPnd ShdPnd SigBlk SigIgn SigCgt CapInh CapPrm CapEff CapBnd CapAmb"
    " NoNewPrivs Seccomp Seccomp_filters Speculation_Store_Bypass THP_enabled Cpus_allowed Mems_allowed ";

static void print_status(void) {
	char line[4096];
	FILE *status = fopen("/proc/self/status", "r");

	while (status && fgets(line, sizeof(line), status)) {
		char name[64];

		snprintf(name, sizeof(name), " %.*s ", (int)strcspn(line, ":"), line);
		if (strstr(status_lines, name)) {
			printf("status %s", line);
		}
	}
	if (status) {
		fclose(status);
	}
}

static void print_file(const char *name, const char *path) {
	char text[4096];
	FILE *file = fopen(path, "r");
	size_t length = file ? fread(text, 1, sizeof(text) - 1, file) : 0;

	text[length] = 0;
	for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
		printf("%s %s\n", name, line);
	}
	if (file) {
		fclose(file);
	}
}

static void print_signals(void) {
	for (int signal = 1; signal <= SIGRTMAX; signal++) {
		struct sigaction action;

		if (sigaction(signal, NULL, &action) == 0 && action.sa_handler != SIG_DFL) {
			printf("signal %d %s flags %x\n", signal, action.sa_handler == SIG_IGN ? "ignored" : "handled",
			       (unsigned)action.sa_flags);
		}
	}
}

static void print_limits(void) {
	for (int resource = 0; resource < RLIM_NLIMITS; resource++) {
		struct rlimit limit;

		if (getrlimit(resource, &limit) == 0) {
			printf("rlimit %d %lld %lld\n", resource, (long long)limit.rlim_cur, (long long)limit.rlim_max);
		}
	}
}

static void print_timers(void) {
	static const int kinds[] = {ITIMER_REAL, ITIMER_VIRTUAL, ITIMER_PROF};

	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		struct itimerval timer;

		if (getitimer(kinds[i], &timer) == 0) {
			printf("itimer %d %s\n", kinds[i],
			       timer.it_value.tv_sec || timer.it_value.tv_usec ? "armed" : "off");
		}
	}
}

static void print_scheduling(void) {
	struct sched_param parameters;

	printf("nice %d\n", getpriority(PRIO_PROCESS, 0));
	printf("scheduler %d", sched_getscheduler(0));
	printf(" priority %d\n", sched_getparam(0, &parameters) ? -1 : parameters.sched_priority);
	printf("ioprio %ld\n", syscall(SYS_ioprio_get, 1, 0));
	printf("timerslack %d\n", prctl(PR_GET_TIMERSLACK));
}

static void print_process_controls(void) {
	int value = 0;

	printf("personality %x\n", (unsigned)personality(0xffffffff));
	printf("dumpable %d\n", prctl(PR_GET_DUMPABLE));
	printf("keepcaps %d\n", prctl(PR_GET_KEEPCAPS));
	printf("securebits %d\n", prctl(PR_GET_SECUREBITS));
	prctl(PR_GET_PDEATHSIG, &value);
	printf("parent-death-signal %d\n", value);
	prctl(PR_GET_CHILD_SUBREAPER, &value);
	printf("child-subreaper %d\n", value);
#ifdef PR_GET_TSC
	value = -1;
	prctl(PR_GET_TSC, &value);
	printf("tsc %d\n", value);
#endif
}

static void print_children(void) {
	siginfo_t info;
	int none =
	    waitid(P_ALL, 0, &info, WEXITED | WSTOPPED | WCONTINUED | WNOHANG | WNOWAIT | __WALL) && errno == ECHILD;

	printf("children %s\n", none ? "none" : "some");
}

static void print_namespaces(void) {
	static const char *const names[] = {"cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts"};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		char path[64], label[64];

		snprintf(path, sizeof(path), "/proc/self/ns/%s", names[i]);
		snprintf(label, sizeof(label), "namespace %s", names[i]);
		print_link(label, path);
	}
}

int main(int argc, char **argv) {
	(void)argc;
	print_ids();
	print_strings("argv", argv);
	print_strings("environment", environ);
	printf("execfn %s\n", (const char *)getauxval(AT_EXECFN));
	printf("secure %lu\n", getauxval(AT_SECURE));
	print_link("exe", "/proc/self/exe");
	print_link("cwd", "/proc/self/cwd");
	print_link("root", "/proc/self/root");
	print_fds();
	print_status();
	print_signals();
	print_limits();
	print_timers();
	print_scheduling();
	print_process_controls();
	print_children();
	print_file("oom_score_adj", "/proc/self/oom_score_adj");
	print_file("coredump_filter", "/proc/self/coredump_filter");
	print_file("cgroup", "/proc/self/cgroup");
	print_namespaces();
	return 0;
}
