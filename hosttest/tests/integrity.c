/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A guest that writes its own image, and tries to write the pages beside it: no other process is affected.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../identity.h"
#include "../tests.h"

enum { PAGE = 4096, PAGES_BELOW = 3, PAGES_OF_IMAGE = 2, PIECE = 64 };
/* More than any clock may differ. */
#define SLACK_NS 100000000ll

static long long nanoseconds(const struct timespec *time) { return time->tv_sec * 1000000000ll + time->tv_nsec; }

static void check_clock(enum way way, const char *when) {
	struct timespec before, answer, after;

	truth(SYS_clock_gettime, CLOCK_MONOTONIC, (long)&before, 0);
	expect_equal(ask(way, CALL_clock_gettime, CLOCK_MONOTONIC, (long)&answer, 0), 0, when, "clock_gettime", way);
	truth(SYS_clock_gettime, CLOCK_MONOTONIC, (long)&after, 0);
	expect(nanoseconds(&answer) >= nanoseconds(&before) - SLACK_NS &&
		   nanoseconds(&answer) <= nanoseconds(&after) + SLACK_NS,
	       "%s: clock_gettime by %s: %lld, and not between %lld and %lld", when, way_names[way],
	       nanoseconds(&answer), nanoseconds(&before), nanoseconds(&after));
}

static const char garbage[PIECE] = {1, 2, 3, 4, 5, 6, 7, 8};

/* Looks for what others have written in this process's image and pages. Some of the kernel's own cannot be read. */
static void check_pages(const char *when) {
	const unsigned long image = getauxval(AT_SYSINFO_EHDR);
	const int memory = open("/proc/self/mem", O_RDONLY);
	char bytes[PIECE];

	for (int i = -PAGES_BELOW; memory >= 0 && image && i < PAGES_OF_IMAGE; i++)
		if (pread(memory, bytes, PIECE, (off_t)image + i * PAGE) == PIECE)
			expect(memcmp(bytes, garbage, PIECE) != 0, "%s: page %d of the image has been written", when,
			       i);
	if (memory >= 0)
		close(memory);
}

static void check_all(const char *when) {
	check_pages(when);
	check_identity(when);
	for (enum way way = BY_SITE; way < WAYS; way++)
		if (way != BY_LIBC && has_way(way, CALL_clock_gettime))
			check_clock(way, when);
}

/* Writes to a page by the right that it can get, or past its protection. Returns whether it could. */
static int write_page(char *page, int by_right, int memory) {
	if (by_right && truth(SYS_mprotect, (long)page, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC) == 0) {
		/* Not by libc's function, which may be in a page of the host's choice. */
		for (unsigned i = 0; i < PAGE; i++)
			((volatile char *)page)[i] = garbage[i % PIECE];
		return 1;
	}
	if (memory < 0 || truth(SYS_lseek, memory, (long)page, SEEK_SET) != (long)page)
		return 0;
	return truth(SYS_write, memory, (long)garbage, PIECE) == PIECE;
}

/* How this ends is the guest's own affair. */
static void harm_itself(atomic_uint *written, int by_right) {
	const unsigned long image = getauxval(AT_SYSINFO_EHDR);
	const int memory = open("/proc/self/mem", O_RDWR);

	for (int i = -PAGES_BELOW; image && i < PAGES_OF_IMAGE; i++)
		if (write_page((char *)image + i * PAGE, by_right, memory))
			atomic_fetch_add(written, 1);
	for (enum way way = BY_SITE; way < WAYS; way++)
		if (has_way(way, CALL_getpid))
			ask(way, CALL_getpid, 0, 0, 0);
	truth(SYS_exit_group, 0, 0, 0);
}

static void harm_in_child(atomic_uint *written, int by_right) {
	const pid_t child = fork_child();
	int status;

	if (child == 0) {
		/* Not what the test's other children do, who must end well. */
		signal(SIGSEGV, SIG_DFL);
		harm_itself(written, by_right);
	}
	while (waitpid(child, &status, 0) < 0 && errno == EINTR)
		;
}

void test_integrity(void) {
	atomic_int *is_over = shared_memory(sizeof(*is_over));
	atomic_uint *written = shared_memory(sizeof(*written));
	const pid_t witness = fork_child();
	int by_right = 0;

	if (witness == 0) {
		is_beside = 1;
		while (!atomic_load(is_over))
			check_all("process beside one that writes its image");
		_exit(0);
	}
	do {
		harm_in_child(written, by_right ^= 1);
		check_all("parent of a process that has written its image");
	} while (!is_enough());
	atomic_store(is_over, 1);
	wait_child(witness, "process beside one that writes its image");
	if (!atomic_load(written))
		skip("no page can be written");
	munmap(is_over, sizeof(*is_over));
	munmap(written, sizeof(*written));
}
