/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Memory to which results were written, and which is then unmapped or protected: the next call says EFAULT.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../identity.h"
#include "../reads.h"
#include "../tests.h"

enum { PAGE = 4096, BYTES = 16 };

static int urandom;

static char *new_page(void *at) {
	void *page = mmap(at, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0), -1, 0);

	if (page == MAP_FAILED) {
		skip("mmap: %s", strerror(errno));
		_exit(0);
	}
	return page;
}

/* Writes results to a page by one of the calls. Returns what it said, 0 for success. */
static long write_result(enum way way, unsigned kind, char *page) {
	char *at = page + 8 * pick(PAGE / 8 - 4);
	long result;

	switch (kind % 4) {
	case 0:
		result = ask(way, CALL_getrandom, (long)at, BYTES, 0);
		return result == BYTES ? 0 : result;
	case 1:
		result = ask(way, CALL_read, urandom, (long)at, BYTES);
		return result == BYTES ? 0 : result;
	case 2:
		return ask(way, CALL_clock_gettime, 1, (long)at, 0);
	default:
		return ask(way, CALL_getresuid, (long)at, (long)at + 8, (long)at + 16);
	}
}

static int is_raw(enum way way) { return way != BY_LIBC && has_way(way, CALL_getrandom); }

static void check_all(char *page, long wanted, const char *when) {
	static const char *const names[] = {"getrandom", "read", "clock_gettime", "getresuid"};

	for (unsigned kind = 0; kind < 4; kind++)
		for (enum way way = BY_TRUTH; way < WAYS; way++)
			if (is_raw(way))
				expect_equal(write_result(way, kind, page), wanted, when, names[kind], way);
}

static long no_access(char *page) { return mprotect(page, PAGE, PROT_NONE); }
static long read_only(char *page) { return mprotect(page, PAGE, PROT_READ); }
static long unmap(char *page) { return munmap(page, PAGE); }

static long cover(char *page) {
	return mmap(page, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED ? -1 : 0;
}

static long move_away(char *page) {
	void *elsewhere = mremap(page, PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, page - 16 * PAGE);

	return elsewhere == MAP_FAILED ? -1 : munmap(elsewhere, 2 * PAGE);
}

static long by_vfork(char *page) {
	const pid_t child = vfork();

	if (child == 0)
		truth(SYS_exit_group, syscall(SYS_munmap, page, PAGE) != 0, 0, 0);
	if (child < 0)
		return -1;
	wait_child(child, "child of vfork that unmaps memory");
	return 0;
}

static const struct {
	const char *name;
	long (*take)(char *page);
} ways_to_take[] = {{"mprotect(PROT_NONE)", no_access},
		    {"mprotect(PROT_READ)", read_only},
		    {"munmap", unmap},
		    {"mmap(MAP_FIXED)", cover},
		    {"mremap", move_away},
		    {"munmap after vfork", by_vfork}};
enum { TAKES = sizeof(ways_to_take) / sizeof(ways_to_take[0]) };

static void take_and_give(unsigned way) {
	/* Free pages are around it. */
	char *area = mmap(NULL, 64 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *page;

	if (area == MAP_FAILED)
		return;
	page = new_page(area + 32 * PAGE);
	check_all(page, 0, "memory");
	if (ways_to_take[way].take(page))
		skip("%s: %s", ways_to_take[way].name, strerror(errno));
	else
		check_all(page, -EFAULT, ways_to_take[way].name);
	check_all(new_page(page), 0, "memory that is mapped again");
	munmap(area, 64 * PAGE);
}

static void shrink_heap(void) {
	char *end = (char *)syscall(SYS_brk, 0), *page = (char *)(((unsigned long)end + PAGE - 1) & -(long)PAGE);

	if ((char *)syscall(SYS_brk, page + PAGE) != page + PAGE)
		return;
	check_all(page, 0, "heap");
	syscall(SYS_brk, end);
	/* An emulator may keep the memory. */
	if (write_result(BY_TRUTH, 0, page) == -EFAULT)
		check_all(page, -EFAULT, "brk");
}

/* Threads write results while the page comes and goes: success or EFAULT, and no crash. */
struct toggled {
	char *page;
	atomic_int is_over;
};

static void *write_for_ever(void *argument) {
	struct toggled *toggled = argument;

	is_beside = 1;
	pick_seed(seed + (unsigned long)&toggled);
	while (!atomic_load(&toggled->is_over)) {
		const enum way way = pick(WAYS);
		long result;

		if (!is_raw(way))
			continue;
		result = write_result(way, pick(4), toggled->page);
		/* A result may be written in part. */
		expect((result >= 0 && result < BYTES) || result == -EFAULT, "memory that comes and goes: %ld by %s",
		       result, way_names[way]);
	}
	return NULL;
}

static void toggle(void *nothing) {
	struct toggled toggled = {new_page(NULL), 0};
	pthread_t threads[2];

	(void)nothing;
	for (unsigned i = 0; i < 2; i++)
		if (pthread_create(&threads[i], NULL, write_for_ever, &toggled)) {
			skip("pthread_create");
			_exit(0);
		}
	do {
		nap(pick(100));
		if (mprotect(toggled.page, PAGE, pick(2) ? PROT_READ : PROT_NONE))
			skip("mprotect: %s", strerror(errno));
		else
			check_all(toggled.page, -EFAULT, "mprotect beside threads");
		nap(pick(100));
		mprotect(toggled.page, PAGE, PROT_READ | PROT_WRITE);
		check_all(toggled.page, 0, "mprotect back beside threads");
	} while (!is_enough());
	atomic_store(&toggled.is_over, 1);
	for (unsigned i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
}

void test_memory(void) {
	unsigned way = 0;

	urandom = open_kind(KIND_RANDOM);
	do {
		take_and_give(way++ % TAKES);
		if (pick(4) == 0)
			shrink_heap();
	} while (way < TAKES || !is_enough_of(0.6));
	in_child(toggle, NULL, "threads that write to memory that comes and goes");
}
