/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "gate.h"
#include "complain.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>

extern const unsigned char gate_start[], gate_call[], gate_restorer[], gate_forward[], gate_forward_exactly[],
    gate_cloned[], gate_slots[], gate_end[];

_Static_assert(offsetof(struct gate_cloned, unused) == 9 * 8, "what gate.S pushes");

struct gate gate;

static const size_t page = FASTPATH_PAGE_SIZE;

/* Ring and answers are this process's own, and zero in a child. */
static int map_answers(unsigned char *ring) {
	if (madvise(ring, 2 * page, MADV_WIPEONFORK))
		return complain_errno("madvise(MADV_WIPEONFORK)");
	gate.answers = (struct fastpath_answers){.size = sizeof(gate.answers), .page = ring + page};
	return 0;
}

static int map_image(const fastpath_image *image, uint32_t flags) {
	const struct fastpath_instance_options options = {.size = sizeof(options),
							  .flags = flags,
							  .address = (uintptr_t)gate.image,
							  .page_offset = FASTPATH_PAGE_OFFSET_DEFAULT};
	const size_t size = fastpath_image_size(image);
	const int written = fastpath_instantiate(image, &options, gate.image, size);

	if (written < 0)
		return complain("making an instance of the image", fastpath_strerror(written));
	gate.answer = gate.image + fastpath_image_symbol(image, "__fastpath_answer");
	gate.entry = (uintptr_t)gate.image + fastpath_image_symbol(image, "__fastpath_syscall");
	if (mprotect(gate.image, size, PROT_READ | PROT_EXEC))
		return complain_errno("making the image executable");
	return 0;
}

static int map_gate_code(unsigned char *at) {
	const uint64_t slots[] = {gate.start, gate.size, (uintptr_t)trap_on_purpose};
	const uintptr_t moved = (uintptr_t)at - (uintptr_t)gate_start;

	memcpy(at, gate_start, (size_t)(gate_end - gate_start));
	memcpy(at + (gate_slots - gate_start), slots, sizeof(slots));
	if (mprotect(at, page, PROT_READ | PROT_EXEC))
		return complain_errno("making the gate executable");
	gate.call = (long (*)(long, long, long, long, long, long, long))((uintptr_t)gate_call + moved);
	gate.restorer = (uintptr_t)gate_restorer + moved;
	gate.forward = (uintptr_t)gate_forward + moved;
	gate.forward_exactly = (uintptr_t)gate_forward_exactly + moved;
	gate.cloned = (uintptr_t)gate_cloned + moved;
	return 0;
}

int map_gate(int page_fd, uint32_t flags) {
	const fastpath_image *image = fastpath_image_for_hosts(fastpath_host_isa());
	const size_t image_size = fastpath_image_size(image);
	const size_t size = 3 * page + image_size + (1 + MOST_STUBS) * page;
	unsigned char *ring = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (ring == MAP_FAILED ||
	    mmap(ring + 2 * page, page, PROT_READ, MAP_SHARED | MAP_FIXED, page_fd, 0) == MAP_FAILED)
		return complain_errno("mapping the pages");
	gate.image = ring + 3 * page;
	gate.stubs = gate.image + image_size + page;
	gate.start = (uintptr_t)gate.image;
	gate.size = image_size + (1 + MOST_STUBS) * page;
	return map_answers(ring) || map_image(image, flags) || map_gate_code(gate.image + image_size) ? -1 : 0;
}

long dispatch(int is_on) {
	return is_on ? CALL_5(SYS_prctl, GATE_DISPATCH, 1, gate.start, gate.size, 0)
		     : CALL_5(SYS_prctl, GATE_DISPATCH, 0, 0, 0, 0);
}

/* Writes code; r11 is free until gate_cloned has trapped. */
static void write_stub(unsigned char *at, uint64_t behind, uint32_t flags) {
	static const unsigned char call_and_load_rcx[] = {0x0f, 0x05, 0x48, 0xb9}, load_r11d[] = {0x41, 0xbb};
	static const unsigned char jump_to_rcx[] = {0xff, 0xe1};
	int32_t distance;

	memcpy(at, call_and_load_rcx, sizeof(call_and_load_rcx));
	memcpy(at + 4, &behind, sizeof(behind));
	if (flags == NOT_CLONED) {
		memcpy(at + 12, jump_to_rcx, sizeof(jump_to_rcx));
		return;
	}
	memcpy(at + 12, load_r11d, sizeof(load_r11d));
	memcpy(at + 14, &flags, sizeof(flags));
	distance = (int32_t)(gate.cloned - ((uintptr_t)at + 23));
	at[18] = 0xe9;
	memcpy(at + 19, &distance, sizeof(distance));
}

uint64_t stub_for(uint64_t behind, uint32_t flags) {
	static struct {
		uint64_t behind;
		uint32_t flags;
	} stubs[MOST_STUBS];
	static size_t count;
	unsigned char *at;

	for (size_t i = 0; i < count; i++)
		if (stubs[i].behind == behind && stubs[i].flags == flags)
			return (uintptr_t)gate.stubs + i * page;
	if (count == MOST_STUBS)
		return 0;
	/* Each has a page of its own, so that none that a thread executes is ever writable. */
	at = gate.stubs + count * page;
	/* A fork may have interrupted another thread here. */
	if (CALL_3(SYS_mprotect, at, page, PROT_READ | PROT_WRITE))
		return 0;
	write_stub(at, behind, flags);
	if (CALL_3(SYS_mprotect, at, page, PROT_READ | PROT_EXEC))
		return 0;
	stubs[count].behind = behind;
	stubs[count].flags = flags;
	return (uintptr_t)gate.stubs + count++ * page;
}
