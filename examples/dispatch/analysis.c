/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "analysis.h"
#include "gate.h"
#include "memory.h"
#include "sites.h"

#include <asm/prctl.h>
#include <fcntl.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	MOV_EAX = 0xb8,
	MOV_EAX_BYTES = 5,
	STACK_BYTES = 16 << 20,
	LARGEST_FILE = 64 << 20,
	/* Nothing is mapped below (vm.mmap_min_addr). */
	LOWEST_ADDRESS = 64 << 10,
};

void call_on_stack(void (*function)(void *), void *argument, void *stack_top);

static unsigned long own_thread_pointer;

void analysis_start(void) { syscall(SYS_arch_prctl, ARCH_GET_FS, &own_thread_pointer); }

/* ---- in the child, which has this program's own C library ---- */

struct request {
	uint64_t address;
	struct analysis *analysis;
};

struct mapping {
	uint64_t start, end;
	unsigned device_major, device_minor;
	unsigned long inode;
	char permissions[5];
	char path[4096];
};

static bool read_mapping(FILE *maps, struct mapping *mapping) {
	char line[sizeof(mapping->path) + 128];
	int path_at = 0;

	if (!fgets(line, sizeof(line), maps))
		return false;
	line[strcspn(line, "\n")] = '\0';
	if (sscanf(line, "%lx-%lx %4s %*x %x:%x %lu %n", &mapping->start, &mapping->end, mapping->permissions,
		   &mapping->device_major, &mapping->device_minor, &mapping->inode, &path_at) != 6)
		return false;
	snprintf(mapping->path, sizeof(mapping->path), "%s", line + path_at);
	return true;
}

static bool is_same_file(const struct mapping *one, const struct mapping *other) {
	return one->inode == other->inode && one->device_major == other->device_major &&
	       one->device_minor == other->device_minor;
}

static bool find_mapping(FILE *maps, uint64_t address, struct mapping *mapping) {
	while (read_mapping(maps, mapping))
		if (address >= mapping->start && address < mapping->end)
			return true;
	return false;
}

/* Where the file begins, and free memory of this size below. Above it the heap grows. */
static bool find_room(FILE *maps, const struct mapping *file, uint64_t size, uint64_t *start, uint64_t *room) {
	struct mapping mapping;
	uint64_t end_before = LOWEST_ADDRESS;

	*start = 0;
	*room = 0;
	while (*start == 0 && read_mapping(maps, &mapping)) {
		if (mapping.start - end_before >= size && mapping.start > end_before)
			*room = mapping.start - size;
		end_before = mapping.end;
		if (is_same_file(&mapping, file))
			*start = mapping.start;
	}
	return *start && *room;
}

/* Returns the bytes of a file, if it is still the one that is mapped. */
static const void *map_whole(const struct mapping *mapping, size_t *size) {
	const int fd = open(mapping->path, O_RDONLY | O_CLOEXEC);
	struct stat status;
	void *bytes;

	if (fd < 0 || fstat(fd, &status) || status.st_ino != mapping->inode || !S_ISREG(status.st_mode) ||
	    status.st_size <= 0 || status.st_size > LARGEST_FILE)
		return NULL;
	*size = (size_t)status.st_size;
	bytes = mmap(NULL, *size, PROT_READ, MAP_PRIVATE, fd, 0);
	return bytes == MAP_FAILED ? NULL : bytes;
}

static bool is_candidate(const struct fastpath_site *site) {
	/* A descriptor that is marked now is not known here: any will do. */
	return site->is_proven && (site->number == SYS_read || is_answerable(site->number, 0));
}

static bool is_one_instruction(const struct fastpath_patch *patch) {
	return patch->length == MOV_EAX_BYTES && patch->original[0] == MOV_EAX;
}

static void find_patches(const struct mapping *mapping, uint64_t bias, const fastpath_sites *sites,
			 struct analysis *analysis) {
	for (size_t i = 0; i < fastpath_sites_count(sites) && analysis->count < MOST_PATCHES; i++) {
		struct fastpath_site site = {.size = sizeof(site)};
		struct fastpath_patch *patch = &analysis->patches[analysis->count];

		fastpath_site_at(sites, i, &site);
		patch->size = sizeof(*patch);
		if (bias + site.address - mapping->start >= mapping->end - mapping->start || !is_candidate(&site) ||
		    fastpath_site_patch(sites, i, bias, analysis->thunks + (uint64_t)analysis->count * THUNK_ROOM,
					gate.entry, patch) ||
		    patch->thunk_length > THUNK_ROOM || !is_one_instruction(patch))
			continue;
		analysis->count++;
	}
}

static void analyse(uint64_t address, struct analysis *analysis) {
	FILE *maps = fopen("/proc/self/maps", "re");
	struct mapping mapping;
	fastpath_sites *sites;
	const void *bytes;
	size_t size;
	uint64_t start;

	if (!maps || !find_mapping(maps, address, &mapping))
		return;
	analysis->is_file = mapping.inode != 0 && mapping.path[0] == '/' && strncmp(mapping.path, "/memfd:", 7) != 0;
	if (!analysis->is_file || strcmp(mapping.permissions, "r-xp") != 0)
		return;
	/* Before the file is mapped here as well. */
	rewind(maps);
	analysis->thunk_bytes = MOST_PATCHES * THUNK_ROOM;
	if (!find_room(maps, &mapping, analysis->thunk_bytes, &start, &analysis->thunks))
		return;
	bytes = map_whole(&mapping, &size);
	if (!bytes)
		return;
	sites = fastpath_sites_of(bytes, size);
	find_patches(&mapping, start - fastpath_sites_lowest(sites), sites, analysis);
}

static void in_child(void *argument) {
	const struct request *request = argument;

	/* The guest's heap continues this program's. Its C library learns here where the two end. */
	if (brk((void *)CALL_1(SYS_brk, 0)))
		_exit(1);
	analyse(request->address, request->analysis);
	_exit(0);
}

/* ---- in the guest's process ---- */

/* The next child may be the first of a new namespace, which would end with it (unshare(2), CLONE_NEWPID). */
static bool may_have_children(void) {
	char own[64], of_children[64];
	const long length = CALL_3(SYS_readlink, "/proc/self/ns/pid", own, sizeof(own));

	return length > 0 &&
	       CALL_3(SYS_readlink, "/proc/self/ns/pid_for_children", of_children, sizeof(of_children)) == length &&
	       memcmp(own, of_children, (size_t)length) == 0;
}

const struct analysis *analyse_file_at(uint64_t address) {
	struct request request = {.address = address};
	long child;

	if (!may_have_children())
		return NULL;
	request.analysis = map_memory(sizeof(struct analysis), MAP_SHARED);
	if (!request.analysis)
		return NULL;
	child = CALL_5(SYS_clone, 0, 0, 0, 0, 0);
	if (child == 0) {
		char *stack = map_memory(STACK_BYTES, MAP_PRIVATE);

		CALL_2(SYS_arch_prctl, ARCH_SET_FS, own_thread_pointer);
		if (stack)
			call_on_stack(in_child, &request, stack + STACK_BYTES);
		CALL_1(SYS_exit_group, 1);
	}
	if (child > 0)
		CALL_4(SYS_wait4, child, NULL, __WCLONE, NULL);
	return request.analysis;
}

void analysis_free(const struct analysis *analysis) { CALL_2(SYS_munmap, analysis, sizeof(*analysis)); }
