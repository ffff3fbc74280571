/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * binding WHAT PROGRAM [ARGS]: runs the loader with one part of the image broken that a libc may depend on to find its
 * functions. If the program then makes system calls, its libc did not bind.
 *
 *   nothing    the image as it is
 *   note       the ABI tag names an unknown operating system
 *   hash       DT_HASH has no symbols
 *   gnu-hash   DT_GNU_HASH has none
 *   only-hash  there is no DT_GNU_HASH
 *   hashes     there is none, and DT_HASH has no symbols
 *   versions   the version definitions are for another name
 */
#include "host.h"
#include "program.h"

#include <elf.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

static unsigned char *image;

static const ElfW(Phdr) * segment(uint32_t type) {
	const ElfW(Ehdr) *header = (const void *)image;
	const ElfW(Phdr) *segments = (const void *)(image + header->e_phoff);

	for (int i = 0; i < header->e_phnum; i++)
		if (segments[i].p_type == type)
			return &segments[i];
	return NULL;
}

/* Addresses in the image are offsets from its first byte. */
static void *dynamic(ElfW(Sxword) tag) {
	const ElfW(Phdr) *found = segment(PT_DYNAMIC);
	const ElfW(Dyn) *entry = found ? (const void *)(image + found->p_offset) : NULL;

	for (; entry && entry->d_tag != DT_NULL; entry++)
		if ((ElfW(Sxword))entry->d_tag == tag)
			return image + entry->d_un.d_ptr;
	return NULL;
}

static int break_note(void) {
	const ElfW(Phdr) *found = segment(PT_NOTE);
	unsigned char *at = found ? image + found->p_offset : NULL, *end = found ? at + found->p_filesz : NULL;

	while (at && at < end) {
		ElfW(Nhdr) *note = (void *)at;
		uint32_t *description = (void *)(at + sizeof(*note) + ((note->n_namesz + 3) & ~3u));

		if (note->n_type == NT_GNU_ABI_TAG && memcmp(note + 1, ELF_NOTE_GNU, sizeof(ELF_NOTE_GNU)) == 0) {
			description[0] = 0xff;
			return 0;
		}
		at = (unsigned char *)description + ((note->n_descsz + 3) & ~3u);
	}
	return -1;
}

static int break_hash(void) {
	uint32_t *hash = dynamic(DT_HASH);

	if (!hash)
		return -1;
	/* Empty buckets, and no symbols for a linear search. */
	memset(hash + 2, 0, hash[0] * sizeof(*hash));
	hash[1] = 0;
	return 0;
}

static int break_gnu_hash(void) {
	uint32_t *hash = dynamic(DT_GNU_HASH);

	if (!hash)
		return -1;
	/* Buckets, first symbol, words of the filter, shift; then the filter and the buckets, which become empty. */
	memset(hash + 4, 0, hash[2] * sizeof(ElfW(Addr)) + hash[0] * sizeof(*hash));
	return 0;
}

/* Replaces the tag by an unknown one. */
static int hide_gnu_hash(void) {
	const ElfW(Phdr) *found = segment(PT_DYNAMIC);

	for (ElfW(Dyn) *entry = found ? (void *)(image + found->p_offset) : NULL; entry && entry->d_tag != DT_NULL;
	     entry++)
		if (entry->d_tag == DT_GNU_HASH) {
			entry->d_tag = DT_LOOS;
			return 0;
		}
	return -1;
}

static int break_hashes(void) { return hide_gnu_hash() || break_hash() ? -1 : 0; }

/* Gives every version the name of the first, which is that of the file itself, and a hash that matches neither. */
static int break_versions(void) {
	ElfW(Verdef) *version = dynamic(DT_VERDEF);
	const ElfW(Verdaux) *first = version ? (const void *)((char *)version + version->vd_aux) : NULL;

	if (!version)
		return -1;
	for (;;) {
		((ElfW(Verdaux) *)(void *)((char *)version + version->vd_aux))->vda_name = first->vda_name;
		version->vd_hash ^= 1;
		if (version->vd_next == 0)
			return 0;
		version = (void *)((char *)version + version->vd_next);
	}
}

static int break_nothing(void) { return 0; }

static const struct {
	const char *what;
	int (*break_it)(void);
} breakages[] = {
    {"nothing", break_nothing},   {"note", break_note},         {"hash", break_hash},     {"gnu-hash", break_gnu_hash},
    {"versions", break_versions}, {"only-hash", hide_gnu_hash}, {"hashes", break_hashes},
};

static const char *wanted;

static int break_part(void) {
	for (size_t i = 0; i < sizeof(breakages) / sizeof(breakages[0]); i++)
		if (strcmp(breakages[i].what, wanted) == 0 && breakages[i].break_it() == 0)
			return 0;
	fprintf(stderr, "binding: the image has no %s to break\n", wanted);
	return -1;
}

static void become(char **command, char **envp, int page_fd, uint32_t flags) {
	struct vdso vdso;

	if (map_vdso(page_fd, flags, &vdso))
		return;
	image = vdso.address;
	if (break_part() == 0)
		become_command(command, envp, page_fd, &vdso);
}

int main(int argc, char **argv, char **envp) {
	if (argc < 3) {
		fputs("usage: binding nothing|note|hash|gnu-hash|only-hash|hashes|versions PROGRAM [ARGS]\n", stderr);
		return EXIT_LOADER_FAILED;
	}
	wanted = argv[1];
	return host_program(become, argv + 2, envp, 0);
}
