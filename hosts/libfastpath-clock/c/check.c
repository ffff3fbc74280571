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

enum { FP_COST_OF_READ, FP_COST_OF_SYSCALL, FP_COST_OF_COUNTER, FP_COSTS };
/* Calls that are measured together, and how often that is done: less often once it has taken so long. */
enum { FP_CALLS_TOGETHER = 16, FP_MOST_ROUNDS = 16, FP_LEAST_ROUNDS = 2, FP_ENOUGH_NS = 1200000 };

static void fp_clock_spend(int what) {
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

/*
 * Stores the least cost of each call in nanoseconds; 0: it cannot be measured. They take turns, so that a CPU that
 * changes its speed, or another CPU, changes all of them.
 */
static void fp_clock_measure(double ns[FP_COSTS]) {
	uint64_t least[FP_COSTS] = {0}, all = 0;

	for (int round = 0; round < FP_MOST_ROUNDS && (round < FP_LEAST_ROUNDS || all < FP_ENOUGH_NS); round++)
		for (int what = 0; what < FP_COSTS; what++) {
			const uint64_t begun = fp_clock_ask_kernel_for_ns();
			uint64_t spent;

			fp_clock_spend(what);
			spent = fp_clock_ask_kernel_for_ns() - begun;
			all += spent;
			if (spent && (!least[what] || spent < least[what]))
				least[what] = spent;
		}
	ns[FP_COST_OF_READ] = (double)least[FP_COST_OF_READ] / (FP_CALLS_TOGETHER + 1);
	/* Less that of the reads around. */
	for (int what = FP_COST_OF_READ + 1; what < FP_COSTS; what++)
		if ((double)least[what] > ns[FP_COST_OF_READ])
			ns[what] = ((double)least[what] - ns[FP_COST_OF_READ]) / FP_CALLS_TOGETHER;
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

#ifdef __linux__
/*
 * Returns whether the page at this address of the process answers CLOCK_MONOTONIC. It is read by the kernel, because
 * another thread, or `fastpath detach`, may unmap it; where the kernel refuses, a page is believed to answer.
 */
static int fp_clock_answers(uint64_t page_at) {
#ifdef FASTPATH_CLOCK_READS_PAGES
	const int fd = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
	struct fp_page page;
	ssize_t length;
	struct fp_time now;

	if (fd < 0)
		return 1;
	length = pread(fd, &page, sizeof(page), (off_t)page_at);
	close(fd);
	return length == (ssize_t)sizeof(page) && fp_clock_is_known(&page) &&
	       fp_read_place(&page, FP_CLOCK_MONOTONIC, (struct fp_place){&page.hres, FP_BASE_MONOTONIC}, &now, 0);
#else
	return page_at != 0;
#endif
}
#endif

/* Returns whether fastpath serves the process. At a program's start its list of mappings has some kilobytes. */
static int fp_clock_is_served(void) {
#ifdef __linux__
	/* More than a line up to its name, which may be in two pieces. */
	enum { KEPT = 256 };
	const int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
	unsigned long long start, page_at = 0;
	char text[4096];
	size_t kept = 0;
	int found = 0;

	if (fd < 0)
		return 0;
	for (int pieces = 0; !found && pieces < 64; pieces++) {
		const ssize_t length = read(fd, text + kept, sizeof(text) - 1 - kept);

		if (length <= 0)
			break;
		kept += (size_t)length;
		text[kept] = 0;
		for (const char *name = text; !found && (name = strstr(name, "/memfd:fastpath-")) != NULL; name++) {
			const char *line = name;

			while (line > text && line[-1] != '\n')
				line--;
			if (sscanf(line, "%llx-", &start) != 1)
				continue;
			/* A region begins with its page. (A page of fastpath_clock_open() is alone.) */
			if (!strncmp(name, "/memfd:fastpath-page", 20))
				page_at = start;
			else if (!strncmp(name, "/memfd:fastpath-region", 22))
				found = page_at && start - page_at < FASTPATHD_MAILBOX_OFFSET;
		}
		if (kept > KEPT) {
			memmove(text, text + kept - KEPT, KEPT);
			kept = KEPT;
		}
	}
	close(fd);
	return found && fp_clock_answers(page_at);
#else
	return 0;
#endif
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
	double limit, counter_ns = 0, ns[FP_COSTS] = {0};

	*check = (struct fastpath_clock_check){.is_slow = -1};
	fp_clock_first_line("/sys/devices/system/clocksource/clocksource0/current_clocksource", check->clocksource,
			    sizeof(check->clocksource));
	if (!fp_clock_is_forbidden()) {
		fp_clock_measure(ns);
		check->read_ns = ns[FP_COST_OF_READ];
		check->syscall_ns = ns[FP_COST_OF_SYSCALL];
#ifdef FASTPATH_CLOCK_READS_PAGES
		counter_ns = ns[FP_COST_OF_COUNTER];
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
