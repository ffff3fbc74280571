/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "sites.h"
#include "analysis.h"
#include "answers.h"
#include "gate.h"
#include "log.h"

#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>

enum {
	/* A power of two. */
	MOST_SITES = 1024,
	MOST_RANGES = 64,
};

enum decision { UNDECIDED, TRAPPED_ONCE, DECIDED_KERNEL, DECIDED_HANDLER };

/* Sites that have trapped, found by their addresses. */
static struct {
	uint64_t address;
	uint8_t decision;
} sites[MOST_SITES];

/* Memory with thunks, whose own instructions make what the image did not answer. */
static struct { uint64_t start, end; } thunks[MOST_RANGES];
static unsigned thunk_ranges;

int is_answerable(long number, unsigned descriptor) {
	static const bool answered[] = {
	    [SYS_getpid] = 1,        [SYS_gettid] = 1,       [SYS_getppid] = 1,      [SYS_getpgrp] = 1,
	    [SYS_getuid] = 1,        [SYS_geteuid] = 1,      [SYS_getgid] = 1,       [SYS_getegid] = 1,
	    [SYS_getpgid] = 1,       [SYS_getsid] = 1,       [SYS_getresuid] = 1,    [SYS_getresgid] = 1,
	    [SYS_clock_gettime] = 1, [SYS_clock_getres] = 1, [SYS_gettimeofday] = 1, [SYS_getrandom] = 1,
	};

	if (number == SYS_read)
		return is_marked(descriptor);
	return number >= 0 && number < (long)sizeof(answered) && answered[number];
}

static bool is_in_thunks(uint64_t address) {
	for (unsigned i = 0; i < __atomic_load_n(&thunk_ranges, __ATOMIC_ACQUIRE); i++)
		if (address >= thunks[i].start && address < thunks[i].end)
			return true;
	return false;
}

/* Returns what is known of a site, or NULL if there is no room. */
static uint8_t *find(uint64_t address) {
	/* Knuth's multiplicative hash: the upper ten bits. */
	size_t at = (uint32_t)(address * 2654435761u) >> 22;

	for (unsigned i = 0; i < MOST_SITES; i++, at = (at + 1) % MOST_SITES) {
		uint64_t found = 0;

		if (__atomic_compare_exchange_n(&sites[at].address, &found, address, 0, __ATOMIC_RELAXED,
						__ATOMIC_RELAXED) ||
		    found == address)
			return &sites[at].decision;
	}
	return NULL;
}

/* ---- leading ---- */

static int write_thunks(const struct analysis *analysis) {
	void *at = (void *)analysis->thunks;
	const long got = CALL_6(SYS_mmap, at, analysis->thunk_bytes, PROT_READ | PROT_WRITE,
				MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

	if (got != (long)(uintptr_t)at || thunk_ranges == MOST_RANGES)
		return -1;
	for (unsigned i = 0; i < analysis->count; i++)
		memcpy((char *)at + (size_t)i * THUNK_ROOM, analysis->patches[i].thunk,
		       analysis->patches[i].thunk_length);
	if (CALL_3(SYS_mprotect, at, analysis->thunk_bytes, PROT_READ | PROT_EXEC))
		return -1;
	thunks[thunk_ranges].start = analysis->thunks;
	thunks[thunk_ranges].end = analysis->thunks + analysis->thunk_bytes;
	__atomic_store_n(&thunk_ranges, thunk_ranges + 1, __ATOMIC_RELEASE);
	return 0;
}

/* An aligned one is within a cache line, and is written by one instruction. */
union block {
	uint64_t words[2];
	unsigned char bytes[16];
};

static bool exchange(union block *at, union block old, union block new) {
	bool is_exchanged;

	__asm__ volatile("lock cmpxchg16b %1"
			 : "=@ccz"(is_exchanged), "+m"(*at), "+a"(old.words[0]), "+d"(old.words[1])
			 : "b"(new.words[0]), "c"(new.words[1])
			 : "memory");
	return is_exchanged;
}

/*
 * Replaces one instruction of five bytes by another. Other threads may be executing it: they see the one or the other
 * if both lie in one block.
 */
static bool replace(const struct fastpath_patch *patch) {
	union block *block = (union block *)(patch->address & ~(uint64_t)(sizeof(*block) - 1)), old, new;
	const unsigned at = patch->address % sizeof(*block);

	if (memcmp((const void *)patch->address, patch->original, patch->length) != 0)
		return false;
	if (is_alone()) {
		memcpy((void *)patch->address, patch->replacement, patch->length);
		return true;
	}
	if (at + patch->length > sizeof(*block))
		return false;
	old = new = *block;
	memcpy(new.bytes + at, patch->replacement, patch->length);
	return exchange(block, old, new);
}

/* Patches do not cross a page. Others go on executing it. */
static bool lead(const struct fastpath_patch *patch) {
	void *page = (void *)(patch->address & ~(uint64_t)(FASTPATH_PAGE_SIZE - 1));
	bool is_led;

	if (CALL_3(SYS_mprotect, page, FASTPATH_PAGE_SIZE, PROT_READ | PROT_WRITE | PROT_EXEC))
		return false;
	is_led = replace(patch);
	CALL_3(SYS_mprotect, page, FASTPATH_PAGE_SIZE, PROT_READ | PROT_EXEC);
	return is_led;
}

static void lead_all(const struct analysis *analysis) {
	unsigned led = 0;

	if (analysis->count == 0 || write_thunks(analysis))
		return;
	for (unsigned i = 0; i < analysis->count; i++)
		led += lead(&analysis->patches[i]);
	count(LED_SITES, led);
}

static enum decision decide(uint64_t site) {
	const struct analysis *analysis;
	enum decision decision = DECIDED_KERNEL;
	const uint64_t mask = enter();

	analysis = analyse_file_at(site);
	if (analysis) {
		if (analysis->is_file)
			decision = DECIDED_HANDLER;
		lead_all(analysis);
		analysis_free(analysis);
	}
	leave(mask);
	return decision;
}

enum answerer next_answer(uint64_t site) {
	uint8_t *decision;

	if (is_in_thunks(site) || is_lent())
		return BY_KERNEL;
	decision = find(site);
	if (!decision)
		return BY_KERNEL;
	switch ((enum decision)__atomic_load_n(decision, __ATOMIC_RELAXED)) {
	case UNDECIDED:
		__atomic_store_n(decision, TRAPPED_ONCE, __ATOMIC_RELAXED);
		return BY_KERNEL;
	case TRAPPED_ONCE:
		/* One thread decides, and the others go on. */
		__atomic_store_n(decision, DECIDED_KERNEL, __ATOMIC_RELAXED);
		__atomic_store_n(decision, decide(site), __ATOMIC_RELAXED);
		return BY_KERNEL;
	case DECIDED_HANDLER:
		return BY_HANDLER;
	default:
		return BY_KERNEL;
	}
}
