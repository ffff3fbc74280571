/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A call changes its result, and what the instruction changes: everything else is as before.
 */
#include <string.h>

#include "../reads.h"
#include "../tests.h"
#include "isa.h"

/* isa/ISA/registers.S */
void call_by_site(long number, struct registers *registers, unsigned long stack_offset);
void call_by_entry(long number, struct registers *registers, unsigned long stack_offset, unsigned long entry);

static const char *const general_names[] = {GENERAL_NAMES};

static void fill(struct registers *registers, long a, long b, long c) {
	for (unsigned i = 0; i < GENERAL; i++)
		registers->general[i] = pick(~0ul) << 17 ^ pick(~0ul);
	for (unsigned i = 0; i < VECTOR; i++)
		registers->vector[i] = pick(~0ul) << 17 ^ pick(~0ul);
	for (unsigned i = 0; i < RED_ZONE; i++)
		registers->red_zone[i] = pick(~0ul) << 17 ^ pick(~0ul);
	registers->flags = FLAGS_ALWAYS | (pick(~0ul) & (unsigned)FLAGS_KEPT);
	/* Rare in programs, and costly or deadly to get wrong. */
	if (pick(2))
		registers->flags &= ~(unsigned long)(FLAG_DIRECTION | FLAG_ALIGNMENT);
#ifdef ARGUMENT_1_IS_RESULT
	registers->result = a;
#else
	registers->general[ARGUMENT_1] = a;
#endif
	registers->general[ARGUMENT_2] = b;
	registers->general[ARGUMENT_3] = c;
}

static void compare(const struct registers *before, const struct registers *after, const char *name, enum way way) {
	const unsigned long mask = (unsigned)FLAGS_KEPT;

	for (unsigned i = 0; i < GENERAL; i++)
		expect(before->general[i] == after->general[i], "%s by %s: %s is %#lx instead of %#lx", name,
		       way_names[way], general_names[i], after->general[i], before->general[i]);
	expect((before->flags & mask) == (after->flags & mask), "%s by %s: the flags are %#lx instead of %#lx", name,
	       way_names[way], after->flags & mask, before->flags & mask);
	for (unsigned i = 0; i < VECTOR; i++)
		if (before->vector[i] != after->vector[i]) {
			wrong("%s by %s: vector register %u has changed", name, way_names[way], i / 2);
			break;
		}
	for (unsigned i = 0; i < RED_ZONE; i++)
		if (before->red_zone[i] != after->red_zone[i]) {
			wrong("%s by %s: the red zone has changed", name, way_names[way]);
			break;
		}
}

/* Makes a call by one way, and compares. Returns its result. */
static long call(enum way way, enum call_id id, long a, long b, long c) {
	const unsigned long stack_offset = 512 + STACK_STEP * pick(8);
	struct registers before, after;

	memset(&before, 0, sizeof(before));
	fill(&before, a, b, c);
	after = before;
	if (way == BY_SITE)
		call_by_site(calls[id].number, &after, stack_offset);
	else
		call_by_entry(calls[id].number, &after, stack_offset, entry_address);
	compare(&before, &after, calls[id].name, way);
	return after.result;
}

static void check_result(enum call_id id, long a, long b, long c, long wanted) {
	for (enum way way = BY_SITE; way < WAYS; way++)
		if (way == BY_SITE || (way == BY_ENTRY && entry_address))
			expect_equal(call(way, id, a, b, c), wanted, "registers", calls[id].name, way);
}

void test_registers(void) {
	const int random = open_kind(KIND_RANDOM), zero = open_kind(KIND_ZERO);
	static unsigned char buffer[4096];
	static long ids[4];

	do {
		const long size = 1 + pick(300);

		for (unsigned i = 0; i < 2; i++) {
			check_result(CALL_getpid, 0, 0, 0, truth(SYS_getpid, 0, 0, 0));
			check_result(CALL_gettid, 0, 0, 0, truth(SYS_gettid, 0, 0, 0));
			check_result(CALL_getppid, 0, 0, 0, truth(SYS_getppid, 0, 0, 0));
			check_result(CALL_geteuid, 0, 0, 0, truth(SYS_geteuid, 0, 0, 0));
			check_result(CALL_getpgid, 0, 0, 0, truth(SYS_getpgid, 0, 0, 0));
			check_result(CALL_getsid, -2, 0, 0, truth(SYS_getsid, -2, 0, 0));
			check_result(CALL_setfsuid, -1, 0, 0, truth(SYS_setfsuid, -1, 0, 0));
		}
		check_result(CALL_getresuid, (long)&ids[0], (long)&ids[1], (long)&ids[2], 0);
		check_result(CALL_getrandom, (long)buffer, size, 0, size);
		check_result(CALL_getrandom, (long)buffer + 1, 16, 1, 16);
		check_result(CALL_getrandom, 8, 16, 0, truth(SYS_getrandom, 8, 16, 0));
		check_result(CALL_read, random, (long)buffer, size, size);
		check_result(CALL_read, zero, (long)buffer, size, size);
		check_result(CALL_read, -1, (long)buffer, size, truth(SYS_read, -1, (long)buffer, size));
		check_result(CALL_clock_gettime, 1, (long)ids, 0, 0);
		check_result(CALL_clock_getres, 1, (long)ids, 0, 0);
		check_result(CALL_gettimeofday, (long)ids, 0, 0, 0);
	} while (!is_enough());
}
