/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * restored-bytes: does to its own C library what a uprobe does that comes and goes: restores the first byte of an
 * instruction from the file, for each instruction of some functions, in several orders. The functions must work after
 * each step.
 *
 *     restored-bytes calls    prints `served N` (of the programs that it executed), and ends with 0
 *     restored-bytes waits    prints `ready`; for the first SIGUSR1 restores some bytes, leaves a breakpoint in a place
 *                             that is not executed, and prints `restored`; for the second, checks that all others are
 *                             the file's, takes the breakpoint away, and does as above
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LENGTH = 64, MOST = 8 };

/* A function: its bytes in the file, and the offsets of its instructions up to the jump for errors. */
struct function {
	const char *name;
	unsigned char *at;
	unsigned char file[LENGTH];
	int starts[MOST];
	int count;
	int call; /* index of the system call */
};

static int memory;

static int fail(const char *what) {
	printf("%s: %s\n", what, strerror(errno));
	exit(1);
}

static void write_byte(unsigned char *at, unsigned char byte) {
	if (pwrite(memory, &byte, 1, (off_t)(size_t)at) != 1)
		fail("pwrite");
}

/* Returns whether the function has the form mov $NR, %eax; syscall; cmp; jae, after other instructions. */
static int find(struct function *f, const char *name) {
	static const unsigned char CALL[] = {0x0f, 0x05, 0x48, 0x3d};
	Dl_info info;
	void *map;
	int file, at;

	f->name = name;
	f->at = dlsym(RTLD_DEFAULT, name);
	if (!f->at || !dladdr1(f->at, &info, &map, RTLD_DL_LINKMAP))
		return 0;
	file = open(info.dli_fname, O_RDONLY);
	/* Code lies at its address in glibc's files. */
	if (file < 0 ||
	    pread(file, f->file, LENGTH, (off_t)((size_t)f->at - ((struct link_map *)map)->l_addr)) != LENGTH)
		fail(info.dli_fname);
	close(file);
	for (at = 5; at < 24; at++) {
		if (memcmp(f->file + at, CALL, sizeof(CALL)) || f->file[at - 5] != 0xb8)
			continue;
		f->count = 0;
		if (at > 5)
			f->starts[f->count++] = 0;
		f->starts[f->count++] = at - 5;
		f->call = f->count;
		f->starts[f->count++] = at;
		f->starts[f->count++] = at + 2;
		f->starts[f->count++] = at + 8;
		return 1;
	}
	return 0;
}

static int served;

/* Executes grep for this program's page. */
static void execute(const char *step) {
	char *arguments[] = {"grep", "-q", "memfd:fastpath-page", "/proc/self/maps", NULL};
	int status;
	pid_t child = fork();

	if (!child) {
		execve("/bin/grep", arguments, environ);
		_exit(100 + (errno & 15));
	}
	if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) > 1) {
		printf("%s: an exec ended with %#x\n", step, status);
		exit(1);
	}
	served += WEXITSTATUS(status) == 0;
}

static void expect(const char *step, const char *call, int result, int expected) {
	if (result == -1 ? errno != expected : expected != 0) {
		printf("%s: %s returned %d, errno %d\n", step, call, result, errno);
		exit(1);
	}
}

static void call_all(const char *step) {
	struct timespec time = {0, 0};
	char *none[] = {NULL};

	execute(step);
	expect(step, "unshare", unshare(0), 0);
	expect(step, "setns", setns(-1, CLONE_NEWUTS), EBADF);
	expect(step, "clock_settime", clock_settime(CLOCK_MONOTONIC, &time), EINVAL);
	expect(step, "execve", execve("", none, none), ENOENT);
}

static struct function functions[8];
static int number;

/* Restores the first bytes of the instructions of all functions, one by one; the order is the digits of `order`. */
static void restore(const char *order) {
	for (int i = 0; i < number; i++) {
		struct function *f = &functions[i];
		for (const char *digit = order; *digit; digit++) {
			int start = f->starts[(*digit - '0') % f->count];
			char step[64];
			write_byte(f->at + start, f->file[start]);
			snprintf(step, sizeof(step), "%s+%d", f->name, start);
			call_all(step);
		}
	}
}

static volatile sig_atomic_t signals;
static void count(int signal) {
	(void)signal;
	signals++;
}

static void wait_for(int many) {
	const struct timespec moment = {0, 10000000};
	while (signals < many)
		nanosleep(&moment, NULL);
}

int main(int argc, char **argv) {
	static const char *const NAMES[] = {"execve", "execveat", "unshare", "setns", "clock_settime"};

	setvbuf(stdout, NULL, _IONBF, 0);
	memory = open("/proc/self/mem", O_RDWR);
	if (memory < 0)
		fail("/proc/self/mem");
	for (size_t i = 0; i < sizeof(NAMES) / sizeof(*NAMES); i++)
		number += find(&functions[number], NAMES[i]);
	if (!number || strcmp(functions[0].name, "execve")) {
		printf("this C library's execve has another form\n");
		return 77;
	}
	if (clock_settime(CLOCK_MONOTONIC, &(struct timespec){0}) != -1 || errno != EINVAL) {
		printf("clock_settime: %s\n", strerror(errno));
		return 77;
	}
	if (argc > 1 && !strcmp(argv[1], "waits")) {
		struct function *f = &functions[0];
		int call = f->starts[f->call];
		signal(SIGUSR1, count);
		printf("ready\n");
		wait_for(1);
		write_byte(f->at + f->starts[0], f->file[f->starts[0]]);
		write_byte(f->at + call + 1, f->file[call + 1]);
		write_byte(f->at + call + 2, 0xcc);
		printf("restored\n");
		wait_for(2);
		for (int i = 0; i < number; i++)
			for (int at = 0; at < LENGTH; at++)
				if (functions[i].at[at] != (i == 0 && at == call + 2 ? 0xcc : functions[i].file[at])) {
					printf("%s+%d is %#x\n", functions[i].name, at, functions[i].at[at]);
					return 1;
				}
		write_byte(f->at + call + 2, f->file[call + 2]);
		call_all("at the end");
		return 0;
	}
	call_all("at first");
	/* One instruction; forward; backward. */
	restore("0");
	restore("01234");
	restore("43210");
	printf("served %d\n", served);
	return 0;
}
