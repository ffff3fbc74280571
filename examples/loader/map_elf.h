/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Mapping an ELF program, as the kernel does it at an exec. */
#ifndef LOADER_MAP_ELF_H
#define LOADER_MAP_ELF_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

/* A program, or its interpreter, in memory. Addresses are where things are, not what the file says. */
struct mapped {
	uintptr_t base; /* what was added to the file's addresses */
	uintptr_t entry;
	uintptr_t headers; /* the program headers */
	size_t header_size, header_count;
	char interpreter[PATH_MAX]; /* empty: it has none */
};

/* 0, or -1 after a message. */
int map_elf(const char *path, struct mapped *mapped);

#endif
