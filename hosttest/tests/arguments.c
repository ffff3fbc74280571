/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Sizes, flags, descriptors and numbers of calls, valid and not.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "../reads.h"
#include "../tests.h"

enum { MOST = 4096, MARGIN = 64, CANARY = 0x5a };

static unsigned char buffer[MARGIN + MOST + MARGIN];

static int is_canary(const unsigned char *bytes, size_t size) {
	for (size_t i = 0; i < size; i++)
		if (bytes[i] != CANARY)
			return 0;
	return 1;
}

/* Checks that a call has written `result` bytes, and nothing around them. */
static void check_written(long result, const char *name, enum way way) {
	const size_t written = result > 0 ? result : 0;

	expect(is_canary(buffer, MARGIN) && is_canary(buffer + MARGIN + written, MOST + MARGIN - written),
	       "%s by %s: bytes around the result of %ld are written", name, way_names[way], result);
	/* That 16 random bytes are all the same is impossible. */
	expect(written < 16 || !is_canary(buffer + MARGIN + written - 16, 16),
	       "%s by %s: the last bytes of %ld are not written", name, way_names[way], result);
	memset(buffer, CANARY, sizeof(buffer));
}

static void check_sizes_and_flags(int file) {
	static const long sizes[] = {0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 255, 256, 257, 4095, 4096};
	/* NONBLOCK is 1, RANDOM 2, INSECURE 4; the others are invalid, but the upper half is ignored. */
	static const long flags[] = {0, 1, 4, 2, 5, 3, 6, 7, 8, 16, 0x80000000, -1, 0x100000000, 0x100000008};
	const long at = (long)buffer + MARGIN;

	for (unsigned size = 0; size < sizeof(sizes) / sizeof(sizes[0]); size++) {
		/* All flags with one size, and one with the others. */
		for (unsigned i = 0; i < (size == 8 ? sizeof(flags) / sizeof(flags[0]) : 3); i++) {
			const long wanted = ask(BY_TRUTH, CALL_getrandom, at, sizes[size], flags[i]);

			check_written(wanted, "getrandom", BY_TRUTH);
			for (enum way way = BY_SITE; way < WAYS; way++)
				if (has_way(way, CALL_getrandom)) {
					const long got = ask(way, CALL_getrandom, at, sizes[size], flags[i]);

					expect(got == wanted,
					       "getrandom of %ld with flags %#lx by %s: %ld instead of %ld",
					       sizes[size], flags[i], way_names[way], got, wanted);
					check_written(got, "getrandom", way);
				}
		}
		for (enum way way = BY_TRUTH; way < WAYS; way++)
			if (has_way(way, CALL_read)) {
				const long got = ask(way, CALL_read, file, at, sizes[size]);

				expect(got == sizes[size], "read of %ld by %s: %ld", sizes[size], way_names[way], got);
				check_written(got, "read", way);
			}
	}
}

static void check_result(enum call_id call, long a, long b, long c) {
	const long wanted = ask(BY_TRUTH, call, a, b, c);

	for (enum way way = BY_SITE; way < WAYS; way++)
		if (way != BY_LIBC && has_way(way, call)) {
			const long got = ask(way, call, a, b, c);

			expect(got == wanted, "%s(%#lx) by %s: %ld instead of %ld", calls[call].name, a, way_names[way],
			       got, wanted);
		}
}

/* The kernel takes the lower half of ids and descriptors. */
static void check_halves(int file) {
	static const long upper[] = {0, 1l << 32, 1l << 63};
	static const long ids[] = {0, 1, -1, 0x7fffffff, 2};
	const long own = truth(SYS_getpid, 0, 0, 0), at = (long)buffer + MARGIN;

	for (unsigned i = 0; i < 3; i++) {
		check_result(CALL_read, upper[i] | file, at, 16);
		check_result(CALL_getpgid, upper[i] | own, 0, 0);
		check_result(CALL_getsid, upper[i] | own, 0, 0);
		check_result(CALL_setfsuid, upper[i] | 0xffffffff, 0, 0);
		check_result(CALL_setfsgid, upper[i] | 0xffffffff, 0, 0);
		for (unsigned id = 0; id < 5; id++) {
			check_result(CALL_getpgid, upper[i] | ids[id], 0, 0);
			check_result(CALL_getsid, upper[i] | ids[id], 0, 0);
		}
	}
	/* Arguments that a call does not have. */
	check_result(CALL_getpid, -1, -1, -1);
	check_result(CALL_getuid, 8, 8, 8);
	memset(buffer, CANARY, sizeof(buffer));
}

static void check_numbers(void) {
	const long numbers[] = {-1, 1000, 4000, SYS_getpid | 1l << 32, SYS_getuid | 1l << 63, SYS_getpid | 1l << 31,
				511};

	for (unsigned i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		const long wanted = truth(numbers[i], 0, 0, 0);

		for (enum way way = BY_SYSCALL; way < WAYS; way++)
			if (way != BY_LIBC && has_way(way, CALL_getpid)) {
				const long got = ask_number(way, numbers[i], 0, 0, 0);

				expect(got == wanted, "call %#lx by %s: %ld instead of %ld", numbers[i], way_names[way],
				       got, wanted);
			}
	}
}

void test_arguments(void) {
	const int file = open_kind(KIND_RANDOM);

	memset(buffer, CANARY, sizeof(buffer));
	do {
		check_sizes_and_flags(file);
		check_halves(file);
		check_numbers();
	} while (!is_enough());
}
