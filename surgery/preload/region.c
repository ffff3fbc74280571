/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "region.h"

#include "calls.h"

#define ROOM ((uintptr_t)FASTPATHD_REGION_ROOM)

static bool is_within_reach(uintptr_t region, const struct vdso *vdso) {
	uintptr_t lowest = region < vdso->base ? region : vdso->base;
	uintptr_t highest = region + ROOM > vdso->end ? region + ROOM : vdso->end;

	return highest - lowest < FP_REACH;
}

/*
 * Where the kernel maps the vDSO next to the libraries, any address that it chooses is near. Where the vDSO is above
 * the stack, the addresses above it are free, unless the address space ends there (User Mode Linux). Then the region
 * goes below the stack, and leaves it room to grow: more than the 128 MiB that the kernel leaves it
 * (arch/x86/mm/mmap.c).
 */
uintptr_t fp_reserve_region(const struct vdso *vdso, struct why *why) {
	enum { TRIES = 16 };
	const uintptr_t stack_room = 512u << 20;
	uintptr_t stack = (uintptr_t)__builtin_frame_address(0);
	uintptr_t wish = vdso->end;

	for (int i = 0; i < 2 * TRIES; i++, wish += ROOM) {
		if (i == TRIES) {
			if (stack > vdso->base || stack < stack_room)
				break;
			wish = ((stack - stack_room) & ~(uintptr_t)4095) - TRIES * ROOM;
		}
		long at = fp_map(wish, ROOM, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (fp_failed(at))
			return fp_because(why, "no memory for the image", at);
		if (is_within_reach((uintptr_t)at, vdso))
			return (uintptr_t)at;
		fp_unmap((uintptr_t)at, ROOM);
	}
	return fp_because(why, "there is no room within a jump of the vDSO", 0);
}

void fp_give_up_region(uintptr_t region) { fp_unmap(region, ROOM); }

/* Returns false for a section that no code could use, or that reaches beyond the room. */
static bool is_sound(const struct fastpathd_section *section, uint32_t region_size) {
	const uint32_t both = PROT_WRITE | PROT_EXEC;

	return section->size && section->size <= region_size && section->offset <= region_size - section->size &&
	       !((section->offset | section->size) & 4095) && section->file_size <= section->size &&
	       !(section->protection & ~(uint32_t)(PROT_READ | both)) && (section->protection & both) != both;
}

/* Returns whether a file has so many bytes, and keeps them: an access beyond its end would kill the process. */
static bool holds(int fd, uint64_t offset, uint32_t size) {
	char last;
	long seals = fp_syscall4(FP_NR_fcntl, fd, F_GET_SEALS, 0, 0);

	return !fp_failed(seals) && seals & F_SEAL_SHRINK && fp_read_at(fd, &last, 1, offset + size - 1) == 1;
}

static bool copy(uintptr_t at, const struct fastpathd_section *section, int plan, struct why *why) {
	long error = fp_protect(at, section->size, PROT_READ | PROT_WRITE);

	if (error)
		return fp_because(why, "memory for the image cannot be written", error);
	if (fp_read_at(plan, (void *)at, section->file_size, section->file_offset) != (long)section->file_size)
		return fp_because(why, "the daemon's plan is shorter than it says", 0);
	if (section->protection & PROT_EXEC)
		fp_make_executable((void *)at, (void *)(at + section->size));
	error = fp_protect(at, section->size, (int)section->protection);
	if (error)
		return fp_because(why, "this process may have no code of its own making", error);
	return true;
}

/* Maps the file where possible: that takes no memory, and `fastpath detach` recognizes a region by the file's name. */
static bool fill_with_bytes(uintptr_t at, const struct fastpathd_section *section, int plan, struct why *why) {
	if (section->file_size == section->size && !(section->file_offset & 4095)) {
		if (!holds(plan, section->file_offset, section->size))
			return fp_because(why, "the daemon's plan is shorter than it says, or not sealed", 0);
		long mapped = fp_map(at, section->size, (int)section->protection, MAP_PRIVATE | MAP_FIXED, plan,
				     section->file_offset);
		if (!fp_failed(mapped))
			return true;
	}
	return copy(at, section, plan, why);
}

static bool map_shared(uintptr_t at, const struct fastpathd_section *section, int fd, struct why *why) {
	if (!holds(fd, 0, section->size))
		return fp_because(why, "the daemon's page or mailbox is too short, or not sealed", 0);
	long mapped = fp_map(at, section->size, (int)section->protection, MAP_SHARED | MAP_FIXED, fd, 0);
	return fp_failed(mapped) ? fp_because(why, "the daemon's page or mailbox cannot be mapped", mapped) : true;
}

static bool fill(uintptr_t region, const struct fastpathd_section *section, const int fd[], struct why *why) {
	switch (section->source) {
	case FASTPATHD_BYTES:
		return fill_with_bytes(region + section->offset, section, fd[FP_PLAN_FD], why);
	case FASTPATHD_FROM_PAGE:
		return map_shared(region + section->offset, section, fd[FP_PAGE_FD], why);
	case FASTPATHD_MAILBOX:
		return map_shared(region + section->offset, section, fd[FP_MAILBOX_FD], why);
	default:
		return fp_because(why, "the daemon's plan has a section of a kind that is unknown here", 0);
	}
}

uintptr_t fp_page_in(uintptr_t region, const struct fastpathd_answer *answer) {
	for (int i = 0; i < FASTPATHD_SECTIONS; i++)
		if (answer->section[i].source == FASTPATHD_FROM_PAGE)
			return region + answer->section[i].offset;
	return 0;
}

bool fp_fill_region(uintptr_t region, const struct prepared *prepared, struct why *why) {
	const struct fastpathd_answer *answer = &prepared->answer;
	const struct fastpathd_section *section = answer->section;
	uint32_t size = answer->region_size;

	if (!size || size > ROOM || size & 4095)
		return fp_because(why, "the daemon's plan is for a region of another size", 0);
	for (int i = 0; i < FASTPATHD_SECTIONS && section[i].source; i++) {
		if (!is_sound(&section[i], size))
			return fp_because(why, "the daemon's plan has a section that cannot be", 0);
		if (!fill(region, &section[i], prepared->fd, why))
			return false;
	}
	if (size < ROOM)
		fp_unmap(region + size, ROOM - size);
	return true;
}
