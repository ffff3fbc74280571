/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* fastpath_clock_check(): judges the program's own clock reads by what they cost. */
#include <stdio.h>
#include <string.h>
#ifdef __linux__
#include <fcntl.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

/*
 * A read is slow if it costs half of the system call or more, unless the counter itself is as expensive. The same
 * limits as probe's and guard's (instruments/measure/src/verdict.rs), which a test compares.
 */
#define FP_SLOW_AGAINST_SYSCALL 0.5
#define FP_SLOW_AGAINST_COUNTER 2.5

enum fp_clock_cost_of { FP_COST_OF_READ, FP_COST_OF_SYSCALL, FP_COST_OF_COUNTER };
/* Calls that are measured together, and how often that is done: less often once it has taken so long. */
enum { FP_CALLS_TOGETHER = 16, FP_MOST_ROUNDS = 16, FP_LEAST_ROUNDS = 2, FP_ENOUGH_NS = 400000 };

static void fp_clock_spend(enum fp_clock_cost_of what) {
	long long answer[4]; /* room for a timespec of any width */

	for (int i = 0; i < FP_CALLS_TOGETHER; i++) {
		if (what == FP_COST_OF_READ)
			fp_clock_ask_kernel_for_ns();
#ifdef SYS_clock_gettime
		if (what == FP_COST_OF_SYSCALL)
			syscall(SYS_clock_gettime, CLOCK_MONOTONIC, answer);
#endif
#ifdef FASTPATH_CLOCK_READS_PAGES
		if (what == FP_COST_OF_COUNTER)
			fp_read_counter();
#endif
	}
	(void)answer;
}

/* Returns the least cost in nanoseconds, less that of the reads around; 0: it cannot be measured. */
static double fp_clock_cost(enum fp_clock_cost_of what, double read_ns) {
	uint64_t least = 0, all = 0;

	for (int round = 0; round < FP_MOST_ROUNDS && (round < FP_LEAST_ROUNDS || all < FP_ENOUGH_NS); round++) {
		const uint64_t begun = fp_clock_ask_kernel_for_ns();
		uint64_t spent;

		fp_clock_spend(what);
		spent = fp_clock_ask_kernel_for_ns() - begun;
		all += spent;
		if (spent && (!least || spent < least))
			least = spent;
	}
	if (what == FP_COST_OF_READ)
		return (double)least / (FP_CALLS_TOGETHER + 1);
	return (double)least > read_ns ? ((double)least - read_ns) / FP_CALLS_TOGETHER : 0;
}

/* Stores the start of a file's first line. */
static void fp_clock_first_line(const char *path, char *line, size_t size) {
	ssize_t length = -1;
#ifdef __linux__
	const int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd >= 0) {
		length = read(fd, line, size - 1);
		close(fd);
	}
#else
	(void)path;
#endif
	line[length > 0 ? length : 0] = 0;
	line[strcspn(line, "\n")] = 0;
}

/* Returns whether the process has a mapping of fastpath's. At a program's start its list has some kilobytes. */
static int fp_clock_is_served(void) {
	int found = 0;
#ifdef __linux__
	static const char name[] = "/memfd:fastpath-region";
	const int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
	char text[4096];
	size_t kept = 0;
	ssize_t length;

	if (fd < 0)
		return 0;
	for (int pieces = 0; !found && pieces < 64; pieces++) {
		length = read(fd, text + kept, sizeof(text) - kept);
		if (length <= 0)
			break;
		kept += (size_t)length;
		found = memmem(text, kept, name, sizeof(name) - 1) != NULL;
		/* The name may be in two pieces. */
		if (kept >= sizeof(name)) {
			memmove(text, text + kept - sizeof(name), sizeof(name));
			kept = sizeof(name);
		}
	}
	close(fd);
#endif
	return found;
}

/* Whether any read of the counter, the kernel's vDSO's too, would be SIGSEGV (PR_SET_TSC). */
static int fp_clock_is_forbidden(void) {
#ifdef __linux__
	return fp_clock_counter_mode() == PR_TSC_SIGSEGV;
#else
	return 0;
#endif
}

static int fp_clock_has_vdso(void) {
#ifdef __linux__
	return getauxval(AT_SYSINFO_EHDR) != 0;
#else
	return 0;
#endif
}

/* Whether programs can read a clocksource themselves. Only the words depend on it. */
static int fp_clock_is_readable(const char *clocksource) {
	static const char *const readable[] = {"tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter"};

	for (size_t i = 0; i < sizeof(readable) / sizeof(*readable); i++)
		if (!strcmp(clocksource, readable[i]))
			return 1;
	return 0;
}

static void fp_clock_explain(struct fastpath_clock_check *check) {
	const unsigned ns = (unsigned)(check->read_ns + 0.5);
	const char *source = check->clocksource;
	char *says = check->says;

	if (check->is_slow < 0) {
		check->reason = "unknown";
		snprintf(says, sizeof(check->says), "the cost of a clock read could not be measured");
	} else if (!check->is_slow) {
		check->reason = "fast";
		snprintf(says, sizeof(check->says), "a clock read costs %u ns", ns);
	} else if (check->path == FASTPATH_CLOCK_PATH_NONE) {
		check->reason = "no-vdso";
		snprintf(says, sizeof(check->says), "a clock read costs %u ns: this process has no vDSO", ns);
	} else if (*source && !fp_clock_is_readable(source)) {
		check->reason = "clocksource";
		snprintf(says, sizeof(check->says),
			 "a clock read costs %u ns: the kernel's clocksource is %s, which only the kernel reads", ns,
			 source);
	} else {
		check->reason = "not-used";
		snprintf(says, sizeof(check->says),
			 "a clock read costs %u ns: it is a system call, though the process has a vDSO (`fastpath "
			 "doctor` says why)",
			 ns);
	}
}

int fastpath_clock_check(struct fastpath_clock_check *check) {
	const int saved = errno;
	double limit, counter_ns = 0;

	*check = (struct fastpath_clock_check){.is_slow = -1};
	fp_clock_first_line("/sys/devices/system/clocksource/clocksource0/current_clocksource", check->clocksource,
			    sizeof(check->clocksource));
	if (!fp_clock_is_forbidden()) {
		check->read_ns = fp_clock_cost(FP_COST_OF_READ, 0);
		check->syscall_ns = fp_clock_cost(FP_COST_OF_SYSCALL, check->read_ns);
#ifdef FASTPATH_CLOCK_READS_PAGES
		counter_ns = fp_clock_cost(FP_COST_OF_COUNTER, check->read_ns);
#endif
	}
	if (counter_ns > 0)
		check->counter_reads = check->read_ns / counter_ns;
	limit = FP_SLOW_AGAINST_SYSCALL * check->syscall_ns;
	if (limit < FP_SLOW_AGAINST_COUNTER * counter_ns)
		limit = FP_SLOW_AGAINST_COUNTER * counter_ns;
	if (check->read_ns > 0 && check->syscall_ns > 0)
		check->is_slow = check->read_ns > limit;
	if (check->is_slow == 0 && fp_clock_is_served())
		check->path = FASTPATH_CLOCK_PATH_FASTPATH;
	else if (!fp_clock_has_vdso())
		check->path = FASTPATH_CLOCK_PATH_NONE;
	else
		check->path = check->is_slow > 0 ? FASTPATH_CLOCK_PATH_SYSCALL : FASTPATH_CLOCK_PATH_VDSO;
	fp_clock_explain(check);
	errno = saved;
	return check->is_slow;
}
