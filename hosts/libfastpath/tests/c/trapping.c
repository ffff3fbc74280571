/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A host that traps its guest's system calls, here by ptrace, and keeps the page fresh by them alone. The guest is a
 * child that reads CLOCK_MONOTONIC for two seconds, with a pause; the page is shared with it.
 */
#define _GNU_SOURCE
#include <fastpath.h>

#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

#ifdef __x86_64__
#include <sys/user.h>

typedef int clock_gettime_fn(clockid_t, struct timespec *);

static fastpath_publisher publisher;

static long long ns(struct timespec time) { return time.tv_sec * 1000000000LL + time.tv_nsec; }

/* Stores how often it read. */
static void guest(clock_gettime_fn *ours, unsigned long *reads) {
	struct timespec now;
	long long first, last;

	ptrace(PTRACE_TRACEME, 0, NULL, NULL);
	raise(SIGSTOP);
	ours(CLOCK_MONOTONIC, &now);
	first = last = ns(now);
	while (last < first + 2000000000LL) {
		if (++*reads % 100000 == 0) {
			struct timespec pause = {0, 50000000};
			nanosleep(&pause, NULL);
		}
		if (ours(CLOCK_MONOTONIC, &now) != 0 || ns(now) < last)
			_exit(1);
		last = ns(now);
		/* Not made by the image: ignored. */
		if (*reads % 1000 == 0)
			syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
	}
	_exit(0);
}

int main(void) {
	const fastpath_image *image = fastpath_image_of(fastpath_host_isa());
	size_t size = fastpath_image_size(image);
	unsigned char *region =
	    mmap(NULL, size + FASTPATH_PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	unsigned char *page = region, *code = region + FASTPATH_PAGE_SIZE;
	unsigned long *reads = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(region != MAP_FAILED && reads != MAP_FAILED);
	CHECK(fastpath_instantiate(image, NULL, code, size) == (int)size);
	CHECK(mprotect(code, size, PROT_READ | PROT_EXEC) == 0);
	CHECK(fastpath_page_init(page, NULL) == 0);
	struct fastpath_publisher_options options = {.size = sizeof options, .flags = FASTPATH_ON_DEMAND};
	CHECK(fastpath_publisher_init(&publisher, page, &options) == 0);
	clock_gettime_fn *ours =
	    (clock_gettime_fn *)(uintptr_t)(code + fastpath_image_symbol(image, "__vdso_clock_gettime"));

	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0)
		guest(ours, reads);
	int status;
	CHECK(waitpid(child, &status, 0) == child && WIFSTOPPED(status));
	CHECK(ptrace(PTRACE_SETOPTIONS, child, NULL, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL) == 0);

	unsigned long traps = 0, seeds = 0, refreshes = 0;
	for (int entering = 1;; entering = !entering) {
		CHECK(ptrace(PTRACE_SYSCALL, child, NULL, 0) == 0);
		CHECK(waitpid(child, &status, 0) == child);
		if (WIFEXITED(status))
			break;
		CHECK(WIFSTOPPED(status) && WSTOPSIG(status) == (SIGTRAP | 0x80));
		struct user_regs_struct registers;
		CHECK(ptrace(PTRACE_GETREGS, child, NULL, &registers) == 0);
		if (entering || registers.orig_rax != SYS_clock_gettime)
			continue;
		struct timespec now;
		CHECK(clock_gettime((clockid_t)registers.rdi, &now) == 0);
		struct fastpath_trap trap = {
		    .size = sizeof trap,
		    .clock_id = (int32_t)registers.rdi,
		    .image = image,
		    .image_address = (uintptr_t)code,
		    .pc = registers.rip,
		    .answered_ns = (uint64_t)ns(now),
		};
		traps++;
		int advice = fastpath_trapped(&publisher, &trap);
		CHECK(advice >= 0);
		seeds += advice == FASTPATH_SEED;
		refreshes += advice == FASTPATH_REFRESH;
		if (advice != FASTPATH_LEAVE_ALONE)
			CHECK(fastpath_publish(&publisher, NULL) >= 0);
	}
	CHECK(WEXITSTATUS(status) == 0);
	printf("%lu reads, %lu traps, %lu seeds, %lu refreshes\n", *reads, traps, seeds, refreshes);
	CHECK(seeds >= 2 && refreshes >= 1 && seeds + refreshes < 500);
	CHECK(*reads > 10 * traps);
	puts("ok");
	return 0;
}
#else
int main(void) {
	puts("written for x86-64 alone\nok");
	return 0;
}
#endif
