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

/* A file in memory, of which the C library's own is one. */
static void *read_file(const char *path, size_t *size) {
	FILE *file = fopen(path, "rb");
	char *bytes = NULL;
	size_t capacity = 0, got;

	CHECK(file != NULL);
	*size = 0;
	do {
		capacity += 1 << 20;
		bytes = realloc(bytes, capacity);
		CHECK(bytes != NULL);
		got = fread(bytes + *size, 1, capacity - *size, file);
		*size += got;
	} while (got > 0);
	fclose(file);
	return bytes;
}

/* The sites of this program, which makes a call itself. */
static long own_call(void) {
	long result;
#ifdef __x86_64__
	__asm__ volatile("mov %1, %%eax\n	syscall" : "=a"(result) : "i"(SYS_getpid) : "rcx", "r11", "memory");
#else
	register long x8 __asm__("x8") = SYS_getpid;
	register long x0 __asm__("x0");

	__asm__ volatile("svc #0" : "=r"(x0) : "r"(x8) : "memory");
	result = x0;
#endif
	return result;
}

static void sites(void) {
	struct fastpath_site site = {.size = sizeof site};
	struct fastpath_patch patch = {.size = sizeof patch};
	fastpath_sites *sites;
	size_t size, proven = 0, own = 0;
	void *file = read_file("/proc/self/exe", &size);

	CHECK(own_call() == getpid());
	CHECK(fastpath_sites_of(NULL, 0) == NULL && fastpath_sites_count(NULL) == 0);
	sites = fastpath_sites_of("no ELF file", 11);
	CHECK(sites != NULL && fastpath_sites_count(sites) == 0);
	fastpath_sites_free(sites);
	fastpath_sites_free(NULL);
	sites = fastpath_sites_of(file, size);
	CHECK(sites != NULL && fastpath_sites_count(sites) > 0);
	for (size_t i = 0; i < fastpath_sites_count(sites); i++) {
		const uint64_t at = 0x10000000;
		const int patched = fastpath_site_patch(sites, i, 0, at, 0x7f0000001000, &patch);

		CHECK(fastpath_site_at(sites, i, &site) == 0 && (site.reason[0] == 0) == site.is_proven);
		CHECK(patched == (site.is_proven ? 0 : FASTPATH_EINVAL));
		if (!site.is_proven)
			continue;
		proven++;
		own += site.number == SYS_getpid;
		CHECK(patch.length >= 4 && patch.length <= FASTPATH_PATCH_SIZE && patch.thunk_length > 8);
		CHECK(memcmp(patch.original, patch.replacement, patch.length) != 0);
		CHECK(site.address - patch.address < 64);
		CHECK(fastpath_site_patch(sites, i, 0, at + (1ull << 40), 1, &patch) == FASTPATH_EPLACEMENT);
	}
	CHECK(proven > 0 && own > 0);
	CHECK(fastpath_site_at(sites, fastpath_sites_count(sites), &site) == FASTPATH_EINVAL);
	site.size--;
	CHECK(fastpath_site_at(sites, 0, &site) == FASTPATH_ESIZE);
	fastpath_sites_free(sites);
	free(file);
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
	sites();
	printf("ok\n");
	return 0;
}
