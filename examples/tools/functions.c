/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * functions: prints one line for each function of this ISA's image: its bytes, the instructions that a call executes,
 * and the time it takes.
 *
 * Instructions are counted, not estimated: a child calls the function and is single-stepped through it. If the kernel
 * has no single steps (32-bit Arm; an AArch64 kernel has them for 32-bit programs) or the emulator no ptrace, the
 * column shows `-`.
 */
#include "publisher.h"
#include "vdso.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef PTRACE_GET_SYSCALL_INFO
#define PTRACE_GET_SYSCALL_INFO 0x420e /* Linux 5.3 */
#endif

enum { MAX_FUNCTIONS = 64, MAX_STEPS = 2000000, BATCHES = 21, CALLS = 1000 };

/* Arguments of the calls. Functions that read no clock are not listed, and are shown without a call. */
static const struct row {
	const char *function; /* without prefix */
	const char *clock;    /* NULL if it takes none */
	clockid_t id;
} rows[] = {
    {"clock_gettime", "MONOTONIC", 1},     {"clock_gettime", "REALTIME", 0},
    {"clock_gettime", "MONOTONIC_RAW", 4}, {"clock_gettime", "BOOTTIME", 7},
    {"clock_gettime", "COARSE", 6},        {"clock_gettime64", "MONOTONIC", 1},
    {"clock_gettime64", "REALTIME", 0},    {"gettimeofday", NULL, 0},
    {"clock_getres", "MONOTONIC", 1},      {"getcpu", NULL, 0},
};

/* Large enough for everything that the functions store. */
static long long out[2];

/* On all these ISAs a call may have more arguments than the function takes. */
static void call(void *function, const struct row *row) {
	if (row->clock)
		((int (*)(clockid_t, void *))function)(row->id, out);
	else if (strcmp(row->function, "getcpu") == 0)
		((int (*)(void *, void *, void *))function)(&out[0], &out[1], NULL);
	else
		((int (*)(void *, void *))function)(out, NULL);
}

/* The start of struct ptrace_syscall_info, which has the same form on every ISA. */
struct where {
	uint8_t op, pad[3];
	uint32_t arch;
	uint64_t pc, sp;
};

static int next_stop(pid_t child) {
	int status;

	return waitpid(child, &status, __WALL) == child && WIFSTOPPED(status);
}

/* Returns the number of instructions from the function's first to its return, or -1 if they cannot be counted. */
static long count_steps(const struct vdso *vdso, void *function, const struct row *row) {
	const uint64_t start = (uintptr_t)vdso->address, end = start + fastpath_image_size(vdso->image);
	long executed = 0;
	int inside = 0, done = 0;
	const pid_t child = fork();

	if (child == 0) {
		if (ptrace(PTRACE_TRACEME, 0, NULL, NULL))
			_exit(1);
		raise(SIGSTOP);
		call(function, row);
		_exit(0);
	}
	if (child < 0)
		return -1;
	done = !next_stop(child);
	if (done)
		executed = -1;
	for (long steps = 0; steps < MAX_STEPS && !done; steps++) {
		struct where where = {0};

		if (ptrace(PTRACE_SINGLESTEP, child, NULL, NULL) || !next_stop(child) ||
		    ptrace(PTRACE_GET_SYSCALL_INFO, child, sizeof(where), &where) <= 0)
			break;
		if (where.pc == ((uintptr_t)function & ~(uintptr_t)1))
			inside = 1;
		if (inside && (where.pc < start || where.pc >= end))
			done = 1;
		else
			executed += inside;
	}
	kill(child, SIGKILL);
	waitpid(child, NULL, __WALL);
	return done ? executed : -1;
}

static double now_ns(void) {
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* Returns the minimum of a few batches. */
static double cost_ns(void *function, const struct row *row) {
	double least = 1e18;

	for (int batch = 0; batch < BATCHES; batch++) {
		const double start = now_ns();

		for (int i = 0; i < CALLS; i++)
			call(function, row);
		if (now_ns() - start < least)
			least = now_ns() - start;
	}
	return least / CALLS;
}

static const char *plain_name(const char *name) {
	if (strncmp(name, "__vdso_", 7) == 0)
		return name + 7;
	return strncmp(name, "__kernel_", 9) == 0 ? name + 9 : NULL;
}

/* Number of anchors after which instructions are counted: on a busy machine one can reach its age limit before the
 * count ends. */
enum { COUNTS = 3 };

/*
 * Publishes at the publisher's own pace, because earlier samples change nothing, until an anchor lasts long enough to
 * step through a call: the count must be of the fast path.
 */
static void refresh(struct publisher *publisher) {
	enum { MOST = 30, LONG_WINDOW_NS = 60000000 };

	for (int i = 0; i < MOST; i++) {
		struct fastpath_state state = {.size = sizeof(state)};
		struct timespec pause = {0};

		fastpath_state_of(&publisher->publisher, &state);
		pause.tv_sec = (time_t)(state.next_window_ns / 1000000000u);
		pause.tv_nsec = (long)(state.next_window_ns % 1000000000u);
		nanosleep(&pause, NULL);
		if (fastpath_publish(&publisher->publisher, NULL) == FASTPATH_PUBLISHED &&
		    state.next_window_ns >= LONG_WINDOW_NS)
			return;
	}
}

static void print_row(struct publisher *publisher, const struct vdso *vdso, const struct fastpath_function *function,
		      const struct row *row) {
	const char *isa = fastpath_isa_name(fastpath_image_isa(vdso->image));
	void *address = vdso->address + function->offset;
	long steps = -1;

	if (!row) {
		printf("%-8s %-36s %6llu %12s %8s\n", isa, function->name, (unsigned long long)function->size, "-",
		       "-");
		return;
	}
	for (int i = 0; i < COUNTS; i++) {
		long counted;

		refresh(publisher);
		call(address, row);
		counted = count_steps(vdso, address, row);
		if (counted >= 0 && (steps < 0 || counted < steps))
			steps = counted;
	}
	printf("%-8s %-21s %-14s %6llu ", isa, function->name, row->clock ? row->clock : "",
	       (unsigned long long)function->size);
	if (steps < 0)
		printf("%12s", "-");
	else
		printf("%12ld", steps);
	refresh(publisher);
	printf(" %8.1f\n", cost_ns(address, row));
}

int main(void) {
	static struct publisher publisher;
	static struct fastpath_function functions[MAX_FUNCTIONS];
	struct vdso vdso;
	size_t count;

	if (start_publisher(&publisher) || map_vdso(publisher.page_fd, 0, &vdso) || seal_vdso(&vdso))
		return 1;
	count = fastpath_image_functions(vdso.image, functions, MAX_FUNCTIONS);
	printf("%-8s %-36s %6s %12s %8s\n", "ISA", "function", "bytes", "instructions", "ns");
	for (size_t i = 0; i < count && i < MAX_FUNCTIONS; i++) {
		const char *plain = plain_name(functions[i].name);
		int called = 0;

		/* Skip weak names without a prefix, which are the same functions. */
		if (!plain)
			continue;
		for (size_t r = 0; r < sizeof(rows) / sizeof(rows[0]); r++)
			if (strcmp(rows[r].function, plain) == 0) {
				print_row(&publisher, &vdso, &functions[i], &rows[r]);
				called = 1;
			}
		if (!called)
			print_row(&publisher, &vdso, &functions[i], NULL);
		fflush(stdout);
	}
	return 0;
}
