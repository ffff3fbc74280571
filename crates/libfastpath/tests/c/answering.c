/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* A host that answers calls of a guest in its own process, by a page that it writes itself and by a copy of one. */
#define _GNU_SOURCE
#include <fastpath.h>

#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "check.h"

static unsigned char *region;
static int stores, failing;

/* The copy of the page is stored word by word. */
static int store(void *context, uint32_t offset, uint64_t word) {
	CHECK(context == &stores && offset % 8 == 0 && offset < FASTPATH_ANSWERS_SIZE);
	if (failing)
		return -1;
	stores++;
	memcpy(region + FASTPATH_PAGE_SIZE + offset, &word, sizeof word);
	return 0;
}

/* Maps the ring, the answers, the clocks' page and the image, and returns the address of a function of it. */
static const void *map(void) {
	const fastpath_image *image = fastpath_image_for_hosts(fastpath_host_isa());
	size_t size = fastpath_image_size(image);
	struct fastpath_instance_options options = {.size = sizeof options,
						    .page_offset = FASTPATH_PAGE_OFFSET_DEFAULT};

	CHECK(fastpath_image_for_hosts(FASTPATH_I386) == NULL && fastpath_image_for_hosts(0) == NULL);
	CHECK(fastpath_image_symbol(image, "__fastpath_syscall") > 0);
	CHECK(fastpath_image_symbol(fastpath_image_of(fastpath_host_isa()), "__fastpath_syscall") == 0);
	region = mmap(NULL, 3 * FASTPATH_PAGE_SIZE + size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(region != MAP_FAILED);
	options.address = (uintptr_t)region + 3 * FASTPATH_PAGE_SIZE;
	CHECK(fastpath_instantiate(image, &options, region + 3 * FASTPATH_PAGE_SIZE, size) == (int)size);
	CHECK(mprotect(region + 3 * FASTPATH_PAGE_SIZE, size, PROT_READ | PROT_EXEC) == 0);
	CHECK(fastpath_page_init(region + 2 * FASTPATH_PAGE_SIZE, NULL) == 0);
	return region + 3 * FASTPATH_PAGE_SIZE + fastpath_image_symbol(image, "__fastpath_answer");
}

static void answer(const void *function, const struct fastpath_answers *answers) {
	const long none[6] = {0};
	long result = -1;

	CHECK(fastpath_answer(function, SYS_getpid, none, 0, &result) == 0 && result == -1);
	CHECK(fastpath_answers_set(answers, FASTPATH_PID, 4711) == 0);
	CHECK(fastpath_answer(function, SYS_getpid, none, 0, &result) == 1 && result == 4711);
	CHECK(fastpath_answers_set(answers, FASTPATH_UID, 0) == 0);
	CHECK(fastpath_answers_invalidate(answers, FASTPATH_IDENTITY_BIT(FASTPATH_PID)) == 0);
	CHECK(fastpath_answer(function, SYS_getpid, none, 0, &result) == 0);
	CHECK(fastpath_answer(function, SYS_getuid, none, 0, &result) == 1 && result == 0);
	CHECK(fastpath_answers_invalidate(answers, FASTPATH_CREDENTIALS) == 0);
	CHECK(fastpath_answer(function, SYS_getuid, none, 0, &result) == 0);
	CHECK(fastpath_answers_set_random(answers, 1) == 0 && fastpath_answers_forget_memory(answers) == 0);
	CHECK(fastpath_answers_mark_urandom(answers, 1023) == 1);
	CHECK(fastpath_answers_mark_urandom(answers, FASTPATH_ANSWERS_DESCRIPTORS) == 0);
	CHECK(fastpath_answers_unmark(answers, 0, UINT32_MAX) == 0);
	CHECK(fastpath_answers_set_random(answers, 0) == 0);
	CHECK(fastpath_answer(function, 1u << 20, none, 0, &result) == 0);
}

static void refuse(const void *function, struct fastpath_answers answers) {
	const long none[6] = {0};
	long result;

	CHECK(fastpath_answers_set(NULL, FASTPATH_PID, 1) == FASTPATH_EINVAL);
	CHECK(fastpath_answers_set(&answers, 13, 1) == FASTPATH_EINVAL);
	CHECK(fastpath_answers_set(&answers, -1, 1) == FASTPATH_EINVAL);
	CHECK(fastpath_answers_invalidate(&answers, 1u << 13) == FASTPATH_EINVAL);
	CHECK(fastpath_answer(NULL, SYS_getpid, none, 0, &result) == FASTPATH_EINVAL);
	CHECK(fastpath_answer(function, SYS_getpid, NULL, 0, &result) == FASTPATH_EINVAL);
	CHECK(fastpath_answer(function, SYS_getpid, none, 0, NULL) == FASTPATH_EINVAL);
	answers.size--;
	CHECK(fastpath_answers_set(&answers, FASTPATH_PID, 1) == FASTPATH_ESIZE);
	answers.size++;
	answers.page = (char *)answers.page + 4;
	CHECK(fastpath_answers_set(&answers, FASTPATH_PID, 1) == FASTPATH_EINVAL);
	answers.page = NULL;
	CHECK(fastpath_answers_set(&answers, FASTPATH_PID, 1) == FASTPATH_EINVAL);
}

int main(void) {
	static uint64_t copy[FASTPATH_ANSWERS_SIZE / 8];
	const void *function = map();
	const struct fastpath_answers mapped = {.size = sizeof mapped, .page = region + FASTPATH_PAGE_SIZE};
	const struct fastpath_answers copied = {
	    .size = sizeof copied, .page = copy, .store = store, .context = &stores};

	answer(function, &mapped);
	memset(region + FASTPATH_PAGE_SIZE, 0, FASTPATH_PAGE_SIZE);
	answer(function, &copied);
	CHECK(stores > 5 && memcmp(region + FASTPATH_PAGE_SIZE, copy, sizeof copy) == 0);
	failing = 1;
	CHECK(fastpath_answers_set(&copied, FASTPATH_GID, 7) == FASTPATH_ESTORE);
	CHECK(copy[FASTPATH_GID] == 0);
	refuse(function, mapped);
	printf("ok\n");
	return 0;
}
