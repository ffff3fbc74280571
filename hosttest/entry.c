/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Finds __fastpath_syscall in the image that the host provides.
 */
#include <elf.h>
#include <link.h>
#include <stdint.h>
#include <string.h>
#include <sys/auxv.h>

#include "calls.h"
#include "isa.h"
#include "jump.h"

unsigned long entry_address;

/* The parts of an image that its symbols are found by. */
struct image {
	uintptr_t base;
	uintptr_t bias;
	const ElfW(Sym) * symbols;
	const char *strings;
	const uint32_t *hash;
	const uint32_t *gnu_hash;
};

/* Addresses in the dynamic section are offsets, or were relocated by a loader. */
static const void *at(const struct image *image, uintptr_t address) {
	return (const void *)(address < image->base ? image->bias + address : address);
}

static const ElfW(Dyn) * dynamic_section(struct image *image) {
	const ElfW(Ehdr) *header = (const void *)image->base;
	const ElfW(Phdr) *segments = (const void *)(image->base + header->e_phoff);
	const ElfW(Dyn) *dynamic = NULL;

	for (unsigned i = 0; i < header->e_phnum; i++)
		if (segments[i].p_type == PT_LOAD) {
			image->bias = image->base + segments[i].p_offset - segments[i].p_vaddr;
			break;
		}
	for (unsigned i = 0; i < header->e_phnum; i++)
		if (segments[i].p_type == PT_DYNAMIC)
			dynamic = (const void *)(image->bias + segments[i].p_vaddr);
	return dynamic;
}

static unsigned symbol_count(const struct image *image) {
	const uint32_t *gnu = image->gnu_hash, *buckets, *chains;
	unsigned last = 0;

	if (image->hash)
		return image->hash[1];
	if (!gnu)
		return 0;
	buckets = gnu + 4 + gnu[2] * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
	chains = buckets + gnu[0];
	for (unsigned i = 0; i < gnu[0]; i++)
		if (buckets[i] > last)
			last = buckets[i];
	if (last < gnu[1])
		return 0;
	/* The lowest bit marks the end of a chain. */
	while (!(chains[last - gnu[1]] & 1))
		last++;
	return last + 1;
}

void find_entry(void) {
	struct image image = {.base = getauxval(AT_SYSINFO_EHDR)};

	if (!image.base)
		return;
	for (const ElfW(Dyn) *entry = dynamic_section(&image); entry && entry->d_tag != DT_NULL; entry++) {
		const void *value = at(&image, entry->d_un.d_ptr);

		if (entry->d_tag == DT_SYMTAB)
			image.symbols = value;
		else if (entry->d_tag == DT_STRTAB)
			image.strings = value;
		else if (entry->d_tag == DT_HASH)
			image.hash = value;
		else if (entry->d_tag == DT_GNU_HASH)
			image.gnu_hash = value;
	}
	if (!image.symbols || !image.strings)
		return;
	for (unsigned i = 0, count = symbol_count(&image); i < count; i++) {
		const ElfW(Sym) *symbol = &image.symbols[i];

		if (symbol->st_shndx != SHN_UNDEF && strcmp(image.strings + symbol->st_name, "__fastpath_syscall") == 0)
			entry_address = image.bias + symbol->st_value;
	}
}

long by_entry(long number, long a, long b, long c) { return jump_to_entry(entry_address, number, a, b, c); }
