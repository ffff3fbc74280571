/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Measures what clock reads cost by each of several calls, for scripts/bench-rescue.
 *
 *   raw-cost cost CALL...          prints "CALL NS" for each: the least of 20 turns of 10,000 calls
 *   raw-cost count CALL COUNT      makes the calls as soon as it has read a line, prints "done", and waits for another
 *
 * The calls: libc's `clock_gettime`, `gettimeofday` and `time`; `syscall`, which is clock_gettime by libc's syscall();
 * `instruction`, by an instruction of the program, and `to-data`, the same into the program's data; `vsyscall`, which
 * is gettimeofday by the vsyscall page; `clock_getres`, `getcpu` and `getppid` by libc's syscall(), which are no clock
 * reads. With -DZIG, also the calls of raw-cost.zig: `zig-syscall2` and `zig-gettimeofday`.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { TURNS = 20, CALLS = 10000 };

static void by_clock_gettime(void) {
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
}

static void by_gettimeofday(void) {
	struct timeval now;
	gettimeofday(&now, NULL);
}

static void by_time(void) {
	time_t now;
	time(&now);
}

static void by_instruction_to(struct timespec *now) {
#if defined(__x86_64__)
	long result;

	__asm__ volatile("mov $228, %%eax\n	syscall"
			 : "=a"(result)
			 : "D"(CLOCK_MONOTONIC), "S"(now)
			 : "rcx", "r11", "memory");
#elif defined(__i386__)
	long result;

	__asm__ volatile("mov $265, %%eax\n	int $0x80" : "=a"(result) : "b"(CLOCK_MONOTONIC), "c"(now) : "memory");
#else
	register long x0 __asm__("x0") = CLOCK_MONOTONIC;
	register struct timespec *x1 __asm__("x1") = now;

	__asm__ volatile("mov x8, #113\n	svc #0" : "+r"(x0) : "r"(x1) : "x8", "memory");
#endif
}

static void by_instruction(void) {
	struct timespec now;
	by_instruction_to(&now);
}

static void by_instruction_to_data(void) {
	static struct timespec now;
	by_instruction_to(&now);
}

static void by_syscall(void) {
	struct timespec now;
	syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
}

static void clock_getres_by_syscall(void) {
	struct timespec resolution;
	syscall(SYS_clock_getres, CLOCK_MONOTONIC, &resolution);
}

static void getcpu_by_syscall(void) {
	unsigned cpu, node;
	syscall(SYS_getcpu, &cpu, &node, NULL);
}

static void getppid_by_syscall(void) { syscall(SYS_getppid); }

#if defined(__x86_64__)
static void by_vsyscall(void) {
	struct timeval now;
	((long (*)(struct timeval *, void *))0xffffffffff600000)(&now, NULL);
}
#endif

#ifdef ZIG
void zig_syscall2(void);
void zig_gettimeofday(void);
#endif

static const struct {
	const char *name;
	void (*call)(void);
} calls[] = {
    {"clock_gettime", by_clock_gettime},
    {"gettimeofday", by_gettimeofday},
    {"time", by_time},
    {"syscall", by_syscall},
    {"clock_getres", clock_getres_by_syscall},
    {"getcpu", getcpu_by_syscall},
    {"getppid", getppid_by_syscall},
    {"instruction", by_instruction},
    {"to-data", by_instruction_to_data},
#if defined(__x86_64__)
    {"vsyscall", by_vsyscall},
#endif
#ifdef ZIG
    {"zig-syscall2", zig_syscall2},
    {"zig-gettimeofday", zig_gettimeofday},
#endif
};

static double cost_ns(void (*call)(void)) {
	struct timespec begun, ended;
	double least = 1e18;

	for (int turn = 0; turn < TURNS; turn++) {
		clock_gettime(CLOCK_MONOTONIC, &begun);
		for (int i = 0; i < CALLS; i++) {
			call();
		}
		clock_gettime(CLOCK_MONOTONIC, &ended);
		double ns = (double)(ended.tv_sec - begun.tv_sec) * 1e9 + (double)(ended.tv_nsec - begun.tv_nsec);
		least = ns / CALLS < least ? ns / CALLS : least;
	}
	return least;
}

static void (*named(const char *name))(void) {
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		if (strcmp(calls[i].name, name) == 0) {
			return calls[i].call;
		}
	}
	fprintf(stderr, "raw-cost: there is no call %s here\n", name);
	exit(2);
}

/* Makes calls between two lines of standard input. */
static void count(void (*call)(void), long times) {
	if (getchar() == EOF) {
		return;
	}
	while (times-- > 0) {
		call();
	}
	printf("done\n");
	fflush(stdout);
	getchar();
}

int main(int argc, char **argv) {
	if (argc == 4 && strcmp(argv[1], "count") == 0) {
		count(named(argv[2]), strtol(argv[3], NULL, 10));
		return 0;
	}
	if (argc < 3 || strcmp(argv[1], "cost") != 0) {
		fprintf(stderr, "usage: raw-cost cost CALL... | raw-cost count CALL COUNT\n");
		return 2;
	}
	for (int i = 2; i < argc; i++) {
		printf("%s %.1f\n", argv[i], cost_ns(named(argv[i])));
	}
	return 0;
}
