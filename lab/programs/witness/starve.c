/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Keeps the publisher from its work, in a separate process, which releases the publisher when the witness ends, however
 * it ends.
 *
 *   stops  SIGSTOP and SIGCONT, for up to 400 ms
 *   quota  a control group that gets 10 ms of CPU in 100, and whose other process takes all of them
 *   hog    a process of real-time priority on its CPU, for 150 ms of 200
 *   kill   SIGKILL, after 0.7 s: a tick's first change ends after 0.8 s
 */
#include "witness.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

/* State that is shared with the witness. */
struct starved {
	atomic_int publisher;
	atomic_uint rounds;
};

static struct starved *starved;
static pid_t starver;

static size_t read_file(const char *path, char *to, size_t size) {
	int file = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t length = file < 0 ? -1 : read(file, to, size - 1);

	close(file);
	to[length < 0 ? 0 : length] = 0;
	return length < 0 ? 0 : (size_t)length;
}

static int write_file(const char *path, const char *text) {
	int file = open(path, O_WRONLY | O_CLOEXEC);
	int written = file >= 0 && write(file, text, strlen(text)) == (ssize_t)strlen(text);

	close(file);
	return written;
}

/* Returns whether a process is a publisher that was started with the mark in this process's environment. */
static int is_publisher(const char *pid) {
	static char content[1 << 18];
	const char *mark = getenv("WITNESS_MARK");
	char path[PATH_MAX], entry[256];
	size_t length;

	snprintf(path, sizeof(path), "/proc/%s/cmdline", pid);
	read_file(path, content, sizeof(content));
	if (strncmp(content, "fastpath-publisher", strlen("fastpath-publisher")) != 0) {
		return 0;
	}
	snprintf(path, sizeof(path), "/proc/%s/environ", pid);
	snprintf(entry, sizeof(entry), "WITNESS_MARK=%s", mark ? mark : "");
	length = read_file(path, content, sizeof(content));
	return !mark || memmem(content, length, entry, strlen(entry) + 1);
}

static pid_t find_publisher(void) {
	DIR *processes = opendir("/proc");
	struct dirent *process;
	pid_t found = 0;

	while (processes && (process = readdir(processes))) {
		if (atoi(process->d_name) > 0 && is_publisher(process->d_name)) {
			found = atoi(process->d_name);
		}
	}
	if (processes) {
		closedir(processes);
	}
	return found;
}

/* Sleeps. Returns 0 when the witness has ended. */
static int goes_on(int ms) {
	struct pollfd end = {.fd = end_of_witness(), .events = POLLIN};

	atomic_fetch_add(&starved->rounds, 1);
	return poll(&end, 1, ms) == 0;
}

static void stops(pid_t publisher) {
	static const int ms[] = {20, 90, 150, 250, 400, 5};

	for (unsigned int i = 0;; i++) {
		int more;

		kill(publisher, SIGSTOP);
		more = goes_on(ms[i % 6]);
		kill(publisher, SIGCONT);
		if (!more || !goes_on(120)) {
			return;
		}
	}
}

static void kill_once(pid_t publisher) {
	if (goes_on(700)) {
		kill(publisher, SIGKILL);
	}
	while (goes_on(1000)) {
	}
}

/* Starts a process that uses all the CPU time it gets, or pauses in between. It ends with this one. */
static pid_t start_spinner(int cpu, int spin_ms, int pause_ms) {
	const struct sched_param priority = {.sched_priority = 10};
	pid_t spinner = fork();
	cpu_set_t cpus;

	if (spinner != 0) {
		return spinner;
	}
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (cpu >= 0) {
		CPU_ZERO(&cpus);
		CPU_SET(cpu, &cpus);
		sched_setaffinity(0, sizeof(cpus), &cpus);
	}
	if (pause_ms && sched_setscheduler(0, SCHED_FIFO, &priority)) {
		perror("witness: SCHED_FIFO");
		_exit(2);
	}
	for (;;) {
		long long end_ns = read_kernel_ns(MONOTONIC_RAW) + spin_ms * 1000000LL;

		while (read_kernel_ns(MONOTONIC_RAW) < end_ns) {
		}
		if (pause_ms) {
			nanosleep(&(struct timespec){0, pause_ms * 1000000L}, NULL);
		}
	}
}

static void hog(pid_t publisher) {
	char path[64], stat[1024], *field;
	int cpu = 0;
	cpu_set_t before, one;
	pid_t spinner;

	snprintf(path, sizeof(path), "/proc/%d/stat", publisher);
	read_file(path, stat, sizeof(stat));
	/* proc(5): the 39th field; the second ends with a parenthesis. */
	field = strrchr(stat, ')');
	for (int i = 2; field && i < 39; i++) {
		field = strchr(field + 1, ' ');
	}
	cpu = field ? atoi(field) : 0;
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	sched_getaffinity(publisher, sizeof(before), &before);
	sched_setaffinity(publisher, sizeof(one), &one);
	spinner = start_spinner(cpu, 150, 50);
	while (goes_on(200)) {
	}
	kill(spinner, SIGKILL);
	waitpid(spinner, NULL, 0);
	sched_setaffinity(publisher, sizeof(before), &before);
}

/* Finds the root of the control groups that can have a CPU quota; returns their version, 2 or 1, or 0 if there is
 * none. */
static int find_groups(char *root, size_t size) {
	char controllers[512];

	snprintf(root, size, "/sys/fs/cgroup");
	read_file("/sys/fs/cgroup/cgroup.controllers", controllers, sizeof(controllers));
	if (strstr(controllers, "cpu")) {
		write_file("/sys/fs/cgroup/cgroup.subtree_control", "+cpu");
		return 2;
	}
	snprintf(root, size, "/sys/fs/cgroup/cpu");
	return access("/sys/fs/cgroup/cpu/cgroup.procs", W_OK) == 0 ? 1 : 0;
}

static int join_group(const char *group, pid_t pid) {
	char path[PATH_MAX], text[16];

	snprintf(path, sizeof(path), "%s/cgroup.procs", group);
	snprintf(text, sizeof(text), "%d", pid);
	return write_file(path, text);
}

static void quota(pid_t publisher) {
	char root[64], group[128], path[256];
	int version = find_groups(root, sizeof(root));
	pid_t spinner;
	int limited;

	snprintf(group, sizeof(group), "%s/fastpath-witness-%d", root, getpid());
	if (!version || mkdir(group, 0755)) {
		perror("witness: a control group");
		return;
	}
	if (version == 2) {
		snprintf(path, sizeof(path), "%s/cpu.max", group);
		limited = write_file(path, "10000 100000");
	} else {
		snprintf(path, sizeof(path), "%s/cpu.cfs_period_us", group);
		limited = write_file(path, "100000");
		snprintf(path, sizeof(path), "%s/cpu.cfs_quota_us", group);
		limited = limited && write_file(path, "10000");
	}
	spinner = start_spinner(-1, 1000, 0);
	if (limited && join_group(group, spinner) && join_group(group, publisher)) {
		while (goes_on(100)) {
		}
	} else {
		perror("witness: a control group's quota");
		atomic_store(&starved->publisher, 0);
	}
	kill(spinner, SIGKILL);
	waitpid(spinner, NULL, 0);
	join_group(root, publisher);
	rmdir(group);
}

struct way {
	const char *name;
	void (*starve)(pid_t publisher);
};

static const struct way ways[] = {{"stops", stops}, {"quota", quota}, {"hog", hog}, {"kill", kill_once}};

int start_starving(const char *how) {
	void (*starve)(pid_t) = NULL;

	for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
		if (strcmp(ways[i].name, how) == 0) {
			starve = ways[i].starve;
		}
	}
	if (!starve) {
		return 0;
	}
	starved = mmap(NULL, sizeof(*starved), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	end_of_witness();
	starver = starved == MAP_FAILED ? -1 : fork();
	if (starver < 0) {
		fail("a process that starves the publisher");
	}
	if (starver == 0) {
		pid_t publisher = 0;

		setsid();
		signal(SIGINT, SIG_IGN);
		signal(SIGTERM, SIG_IGN);
		close_end_in_child();
		/* A process that is yet to be attached has no publisher. */
		while (!publisher && goes_on(50)) {
			publisher = find_publisher();
		}
		if (publisher) {
			atomic_store(&starved->publisher, publisher);
			starve(publisher);
		}
		_exit(0);
	}
	return 1;
}

int has_starved(void) { return starved && atomic_load(&starved->publisher) > 0; }

void end_starving(void) {
	if (starver > 0) {
		waitpid(starver, NULL, 0);
	}
}
