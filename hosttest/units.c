/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Finds random bytes that were handed out twice (units.h).
 */
#include "units.h"

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "hosttest.h"

enum { UNIT = 8, STEP = 16, COLLECTED = 64, MOST_BYTES = 320 };

struct units {
	atomic_ulong used;
	unsigned long capacity;
	uint64_t unit[];
};

static struct units *units;
static _Thread_local unsigned char collected[COLLECTED];
static _Thread_local volatile size_t collected_size;
/* Number of forks between this process and the first one. */
static volatile sig_atomic_t forks;

void units_create(unsigned long requests) {
	/* A request has 60 bytes on average, which is less than 10 units. */
	const unsigned long capacity = 1000 + 12 * requests;

	units = shared_memory(sizeof(*units) + capacity * sizeof(units->unit[0]));
	units->capacity = capacity;
}

static void keep_unit(const unsigned char *bytes) {
	const unsigned long index = atomic_fetch_add_explicit(&units->used, 1, memory_order_relaxed);

	if (index < units->capacity)
		memcpy(&units->unit[index], bytes, UNIT);
}

static void keep(const unsigned char *bytes, size_t size) {
	for (size_t i = 0; i + UNIT <= size; i++)
		if (i % STEP == 0 || (i > 0 && (bytes[i - 1] & 15) == 0))
			keep_unit(bytes + i);
}

void units_keep(const unsigned char *bytes, size_t size) {
	if (size >= STEP) {
		keep(bytes, size);
		return;
	}
	if (collected_size + size > COLLECTED) {
		keep(collected, collected_size);
		collected_size = 0;
	}
	memcpy(collected + collected_size, bytes, size);
	collected_size += size;
}

void units_forget_collected(void) { collected_size = 0; }

void units_forked(void) {
	forks++;
	units_forget_collected();
}

static long pick_size(void) {
	static const short sizes[] = {1, 2, 4, 8, 12, 16, 16, 16, 16, 24, 32, 48, 64, 128, 255, 256, 257, 300};

	return sizes[pick(sizeof(sizes) / sizeof(sizes[0]))];
}

long units_request(int urandom) {
	const enum call_id call = urandom >= 0 && pick(3) == 0 ? CALL_read : CALL_getrandom;
	const long size = pick_size();
	const sig_atomic_t forks_before = forks;
	unsigned char bytes[MOST_BYTES];
	sigset_t all, old;
	enum way way;
	long got;

	do
		way = pick(WAYS);
	while (!has_way(way, call));
	if (call == CALL_read)
		got = ask(way, call, urandom, (long)bytes, size);
	else
		got = ask(way, call, (long)bytes, size, pick(2) ? 0 : 1);
	if (got < 0 && got != -EAGAIN)
		return got;
	expect(got == size, "%s of %ld by %s: %ld", calls[call].name, size, way_names[way], got);
	/* A fork between the request and here would make two processes keep the same bytes. */
	sigfillset(&all);
	sigprocmask(SIG_BLOCK, &all, &old);
	if (forks == forks_before && got > 0)
		units_keep(bytes, got);
	sigprocmask(SIG_SETMASK, &old, NULL);
	return 0;
}

static int order(const void *a, const void *b) {
	const uint64_t first = *(const uint64_t *)a, second = *(const uint64_t *)b;

	return (first > second) - (first < second);
}

void units_compare(void) {
	unsigned long used = atomic_load(&units->used), twice = 0;

	if (used > units->capacity)
		used = units->capacity;
	qsort(units->unit, used, sizeof(units->unit[0]), order);
	for (unsigned long i = 1; i < used; i++)
		if (units->unit[i] == units->unit[i - 1]) {
			twice++;
			wrong("bytes %016lx were handed out twice", (unsigned long)units->unit[i]);
		}
	expect(used > 0, "no random bytes were compared");
	expect(twice == 0, "%lu of %lu units were handed out more than once", twice, used);
}
