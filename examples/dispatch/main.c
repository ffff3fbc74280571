/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * dispatch [--log] PROGRAM [ARGS]: runs an ELF program of x86-64, and the programs that it executes, as a host in the
 * same process: by Syscall User Dispatch (Linux 5.11), each system call of the guest raises SIGSYS, whose handler
 * decides what becomes of it. Clocks, identities and random bytes are answered by libfastpath's image for hosts: an
 * instruction that makes such a call the second time is led to the image, and traps no more.
 *
 * It is an example of how to keep answers exact in the guest's own process, not a sandbox: nothing here stops a guest
 * that wants to get past its host.
 */
#include "analysis.h"
#include "complain.h"
#include "host.h"
#include "inherited.h"
#include "log.h"
#include "map_elf.h"
#include "program.h"
#include "trap.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

struct inherited inherited;
uint64_t *counters;

enum { COUNTERS_BYTES = 4096, HIGH_DESCRIPTOR = 900 };

/* Moves a descriptor above those that programs use, where exec keeps it. */
static int keep(int fd) {
	int kept = fcntl(fd, F_DUPFD, HIGH_DESCRIPTOR);

	if (kept < 0)
		kept = fcntl(fd, F_DUPFD, 3);
	close(fd);
	return kept;
}

static int map_counters(int fd) {
	void *mapped = mmap(NULL, COUNTERS_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (mapped == MAP_FAILED)
		return complain_errno("mapping the counters");
	counters = mapped;
	return 0;
}

/* Returns a descriptor of counters that are mapped here, or -1 after a message. */
static int make_counters(void) {
	const int fd = memfd_create("dispatch-log", MFD_CLOEXEC);

	if (fd < 0 || ftruncate(fd, COUNTERS_BYTES))
		return complain_errno("making counters");
	return map_counters(fd) ? -1 : fd;
}

/* Ids of a user namespace are assigned by another process, until then all are the same. */
static int knows_users(void) {
	FILE *map = fopen("/proc/self/uid_map", "re");
	const int is_written = map && fgetc(map) != EOF;

	if (map)
		fclose(map);
	return is_written;
}

/* Without /proc, the program is known by the name that it was executed by. */
static const char *own_path(int fd, const char *name) {
	static char path[PATH_MAX];
	char link[64];

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	return readlink(link, path, sizeof(path) - 1) > 0 ? path : name;
}

/* Whether the parent is the publisher and no other process will be: no earlier program has ended that. */
static int has_publisher(void) {
	int signal = 0;

	return prctl(PR_GET_PDEATHSIG, &signal) == 0 && signal == SIGKILL && getppid() == inherited.publisher;
}

/* The name of the thread, as the kernel sets it at an exec. */
static void name_thread(const char *path) {
	const char *slash = strrchr(path, '/');

	prctl(PR_SET_NAME, slash ? slash + 1 : path);
}

/* Returns only after a message. */
static void run(const char *path, int fd, char **argv, char **envp, int knows) {
	struct program program = {.path = path, .fd = fd, .argv = argv, .envp = envp, .enter = start_dispatch};

	if (map_gate(inherited.page, inherited.flags))
		return;
	own_program = own_path(fd, path);
	program.vdso = (uintptr_t)gate.image;
	name_thread(path);
	analysis_start();
	answers_start(knows, has_publisher());
	count(PROGRAMS, 1);
	become_program(&program);
}

/* Returns the path of a command, as execvp(3) finds it. */
static const char *find_command(const char *name) {
	static char path[PATH_MAX];
	const char *folders = getenv("PATH");

	for (; !strchr(name, '/') && folders && *folders; folders += strspn(folders, ":")) {
		const size_t length = strcspn(folders, ":");

		if (snprintf(path, sizeof(path), "%.*s/%s", (int)length, folders, name) < PATH_MAX &&
		    access(path, X_OK) == 0)
			return path;
		folders += length;
	}
	return name;
}

static void become(char **command, char **envp, int page_fd, uint32_t flags) {
	const char *path = find_command(command[0]);
	const int fd = open_elf(path), host = open("/proc/self/exe", O_PATH | O_CLOEXEC);

	if (fd < 0)
		return;
	if (prctl(GATE_DISPATCH, 0, 0, 0, 0)) {
		complain_errno("this kernel has no Syscall User Dispatch");
		return;
	}
	inherited.page = keep(page_fd);
	inherited.host = keep(host);
	inherited.log = keep(inherited.log);
	inherited.flags = flags;
	inherited.publisher = getppid();
	/* The program ends with its publisher, so that it never has another parent. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (inherited.page < 0 || inherited.host < 0 || inherited.log < 0)
		complain_errno("keeping descriptors");
	else
		run(path, fd, command, envp, knows_users());
}

/* dispatch --program FILE,PAGE,HOST,LOG,FLAGS,PUBLISHER,KNOWS-USERS PATH ARGUMENTS: what a guest's execve becomes
 * (exec.c). */
static int run_executed(char **argv, char **envp) {
	int file, knows;

	if (!argv[2] || !argv[3] || !argv[4] ||
	    sscanf(argv[2], "%d,%d,%d,%d,%u,%d,%d", &file, &inherited.page, &inherited.host, &inherited.log,
		   &inherited.flags, &inherited.publisher, &knows) != 7 ||
	    map_counters(inherited.log))
		return EXIT_LOADER_FAILED;
	run(argv[3], file, argv + 4, envp, knows && knows_users());
	return EXIT_CANNOT_RUN;
}

static void report(void) {
	fprintf(stderr, "%s: %lu programs; %lu system calls trapped; %lu instructions led to the image\n",
		program_invocation_short_name, counters[PROGRAMS], counters[TRAPS], counters[LED_SITES]);
}

int main(int argc, char **argv, char **envp) {
	const int verbose = argc > 1 && strcmp(argv[1], "--log") == 0;
	char **command = argv + 1 + verbose;

	if (argc > 1 && strcmp(argv[1], "--program") == 0)
		return run_executed(argv, envp);
	if (!*command || **command == '-') {
		fputs("usage: dispatch [--log] PROGRAM [ARGS]\n", stderr);
		return EXIT_LOADER_FAILED;
	}
	inherited.log = make_counters();
	if (inherited.log < 0)
		return EXIT_LOADER_FAILED;
	if (verbose)
		atexit(report);
	return host_program(become, command, envp, verbose);
}
