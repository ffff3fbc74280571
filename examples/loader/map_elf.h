/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Maps an ELF program, as the kernel does at an exec. */
#ifndef LOADER_MAP_ELF_H
#define LOADER_MAP_ELF_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

/* A program, or its interpreter, in memory. Addresses are those in memory, not the file's. */
struct mapped {
	uintptr_t base; /* added to the file's addresses */
	uintptr_t entry;
	uintptr_t headers; /* the program headers */
	size_t header_size, header_count;
	char interpreter[PATH_MAX]; /* empty if it has none */
};

/* Returns 0, or -1 after a message. */
int map_elf(const char *path, struct mapped *mapped);

#endif
