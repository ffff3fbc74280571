/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Results that cannot be written: the call says EFAULT, and the program goes on.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../identity.h"
#include "../reads.h"
#include "../tests.h"

enum { PAGE = 4096, BYTES = 16 };

static char *pages(int protection, size_t count) {
	void *memory = mmap(NULL, count * PAGE, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED) {
		skip("mmap: %s", strerror(errno));
		_exit(0);
	}
	return memory;
}

/* An address, and what it is. */
struct place {
	const char *name;
	uintptr_t address;
};

enum { PLACES = 13 };

/* `end` is the first byte that is not mapped. */
static void find_places(struct place places[PLACES]) {
	char *unmapped = pages(PROT_READ | PROT_WRITE, 1), *mapped = pages(PROT_READ | PROT_WRITE, 2);
	const uintptr_t end = (uintptr_t)mapped + PAGE;
	unsigned count = 0;

	munmap(unmapped, PAGE);
	munmap(mapped + PAGE, PAGE);
	places[count++] = (struct place){"NULL", 0};
	places[count++] = (struct place){"address 8", 8};
	places[count++] = (struct place){"unmapped memory", (uintptr_t)unmapped};
	places[count++] = (struct place){"memory without access", (uintptr_t)pages(PROT_NONE, 1)};
	places[count++] = (struct place){"read-only memory", (uintptr_t)pages(PROT_READ, 1)};
	places[count++] = (struct place){"the program's code", (uintptr_t)test_pointers & ~7ul};
	places[count++] = (struct place){"the kernel's half", 0xffff800000001000ul};
	places[count++] = (struct place){"a non-canonical address", 0x8000000000000000ul};
	places[count++] = (struct place){"the last bytes", -8ul};
	places[count++] = (struct place){"the end of a mapping", end - 8};
	places[count++] = (struct place){"the end of a mapping, by one byte", end - BYTES + 1};
	places[count++] = (struct place){"the last whole bytes of a mapping", end - BYTES};
	places[count++] = (struct place){"behind a mapping", end};
}

static void check_place(const struct place *place, enum call_id call, long a, long b, long c) {
	const long wanted = ask(BY_TRUTH, call, a, b, c);

	for (enum way way = BY_SITE; way < WAYS; way++)
		/* libc's functions may use the vDSO, which may crash. */
		if (way != BY_LIBC && has_way(way, call))
			expect_equal(ask(way, call, a, b, c), wanted, place->name, calls[call].name, way);
}

static void check_calls(const struct place *place, const int files[2]) {
	static const int clocks[] = {0, 1, 4, 5, 7, 99};
	long good[3] = {0}, at = place->address;

	check_place(place, CALL_getrandom, at, BYTES, 0);
	check_place(place, CALL_getrandom, at, 0, 0);
	check_place(place, CALL_getrandom, at, 1, 1);
	check_place(place, CALL_getrandom, at, BYTES, 1);
	for (unsigned i = 0; i < 2; i++) {
		check_place(place, CALL_read, files[i], at, BYTES);
		check_place(place, CALL_read, files[i], at, 0);
		check_place(place, CALL_read, files[i], at, 1);
	}
	for (unsigned i = 0; i < sizeof(clocks) / sizeof(clocks[0]); i++) {
		check_place(place, CALL_clock_gettime, clocks[i], at, 0);
		check_place(place, CALL_clock_getres, clocks[i], at, 0);
	}
	check_place(place, CALL_gettimeofday, at, 0, 0);
	check_place(place, CALL_gettimeofday, at, at, 0);
	check_place(place, CALL_gettimeofday, (long)good, at, 0);
	for (unsigned i = 0; i < 3; i++) {
		const long arguments[] = {i == 0 ? at : (long)&good[0], i == 1 ? at : (long)&good[1],
					  i == 2 ? at : (long)&good[2]};

		check_place(place, CALL_getresuid, arguments[0], arguments[1], arguments[2]);
		check_place(place, CALL_getresgid, arguments[0], arguments[1], arguments[2]);
	}
}

void test_pointers(void) {
	const int files[] = {open_kind(KIND_RANDOM), open_kind(KIND_ZERO)};
	struct place places[PLACES];

	find_places(places);
	do
		for (unsigned i = 0; i < PLACES; i++)
			check_calls(&places[i], files);
	while (!is_enough());
}
