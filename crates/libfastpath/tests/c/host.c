/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* A host whose guest lives in its own address space: maps an instance and a page, publishes, and calls the image by
 * address. */
#define _GNU_SOURCE
#include <fastpath.h>

#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

typedef int clock_gettime_fn(clockid_t, struct timespec *);

static fastpath_publisher publisher;
static const char *const names[] = {"__vdso_clock_gettime", "__kernel_clock_gettime"};

static long long ns(struct timespec time) { return time.tv_sec * 1000000000LL + time.tv_nsec; }

static void sleep_ms(long ms) {
	struct timespec time = {0, ms * 1000000};
	nanosleep(&time, NULL);
}

static void compare(clock_gettime_fn *ours) {
	static const clockid_t clocks[] = {CLOCK_REALTIME, CLOCK_MONOTONIC, CLOCK_MONOTONIC_RAW, CLOCK_BOOTTIME,
					   CLOCK_TAI};

	for (unsigned i = 0; i < 500; i++) {
		clockid_t clock = clocks[i % 5];
		struct timespec before, now, after;
		CHECK(clock_gettime(clock, &before) == 0);
		CHECK(ours(clock, &now) == 0);
		CHECK(clock_gettime(clock, &after) == 0);
		CHECK(ns(now) + 1000 >= ns(before) && ns(now) <= ns(after) + 1000);
	}
}

/* Seeds the page: two samples, and more where they are interrupted. */
static void seed(void) {
	int result = FASTPATH_WAIT;

	for (int i = 0; i < 10000 && result != FASTPATH_PUBLISHED; i++) {
		result = fastpath_publish(&publisher, NULL);
		CHECK(result >= 0);
		sleep_ms(1);
	}
	CHECK(result == FASTPATH_PUBLISHED);
}

int main(void) {
	struct fastpath_verdict verdict = {.size = sizeof verdict};
	CHECK(fastpath_examine(FASTPATH_EXAMINE_CPUS, &verdict) == 0);
	printf("%u of %u CPUs compared: %s\n", verdict.cpus_tested, verdict.cpus,
	       fastpath_distrust_string(verdict.distrust));
	CHECK(verdict.distrust == FASTPATH_BELIEVED);
	CHECK(fastpath_version() == FASTPATH_VERSION);

	const fastpath_image *image = fastpath_image_of(fastpath_host_isa());
	CHECK(image != NULL && fastpath_image_isa(image) == fastpath_host_isa());
	size_t length = 0;
	const unsigned char *bytes = fastpath_image_bytes(image, &length);
	CHECK(length > 64 && memcmp(bytes, "\177ELF", 4) == 0);

	/* The page above it, as far away as there is room. */
	size_t size = fastpath_image_size(image);
	CHECK(size >= length && size % FASTPATH_PAGE_SIZE == 0);
	size_t distance = size + 16 * FASTPATH_PAGE_SIZE;
	unsigned char *region =
	    mmap(NULL, distance + FASTPATH_PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(region != MAP_FAILED);
	unsigned char *page = region + distance;
	struct fastpath_instance_options options = {
	    .size = sizeof options,
	    .address = (uintptr_t)region,
	    .page_offset = (int64_t)distance,
	};
	CHECK(fastpath_instantiate(image, &options, region, size) == (int)size);
	CHECK(mprotect(region, size, PROT_READ | PROT_EXEC) == 0);

	uint64_t offset = fastpath_image_symbol(image, names[0]);
	if (!offset)
		offset = fastpath_image_symbol(image, names[1]);
	CHECK(offset != 0);
	clock_gettime_fn *ours = (clock_gettime_fn *)(uintptr_t)(region + offset);

	CHECK(fastpath_page_init(page, NULL) == 0);
	CHECK(fastpath_publisher_init(&publisher, page, NULL) == 0);
	compare(ours); /* by system call */
	seed();
	compare(ours); /* by the page, and the system call where it has become too old */

	struct fastpath_state state = {.size = sizeof state};
	/* The first anchors live for milliseconds, and a busy machine may miss many. */
	for (int i = 0; i < 10000 && state.clocks != FASTPATH_CLOCKS_ALL; i++) {
		seed();
		CHECK(fastpath_state_of(&publisher, &state) == 0);
	}
	CHECK(state.clocks == FASTPATH_CLOCKS_ALL && state.seeded && state.withdrawn_reason == 0);
	CHECK(state.refreshes >= 2 && state.ns_per_cycle > 0 && state.next_window_ns > 0);
	CHECK(state.drift_ns > -1000 && state.drift_ns < 1000 && state.age_ns < (int64_t)state.cap_ns);

	CHECK(fastpath_withdraw(&publisher, FASTPATH_REASON_HOST + 7) == 0);
	CHECK(fastpath_state_of(&publisher, &state) == 0);
	CHECK(state.clocks == 0 && state.withdrawn_reason == FASTPATH_REASON_HOST + 7);
	CHECK(strcmp(fastpath_reason_string(state.withdrawn_reason), "withdrawn by the host") == 0);
	compare(ours);

	/* fork: the child's page is a copy without a publisher, so the child starts its own. */
	seed();
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		CHECK(fastpath_publisher_init(&publisher, page, NULL) == 0);
		CHECK(fastpath_state_of(&publisher, &state) == 0 && state.clocks == 0);
		seed();
		compare(ours);
		_exit(0);
	}
	int status = -1;
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	compare(ours);
	puts("ok");
	return 0;
}
