/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "own_vdso.h"

#include <elf.h>
#include <link.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/auxv.h>

/* The parts of the dynamic section that are needed to walk the symbols. */
struct symbols {
	const ElfW(Sym) * table;
	const char *names;
	uint32_t count;
};

static struct symbols find_symbols(const ElfW(Dyn) * dynamic, uintptr_t base) {
	struct symbols symbols = {0};

	for (; dynamic->d_tag != DT_NULL; dynamic++) {
		const void *at = (const void *)(base + dynamic->d_un.d_ptr);

		if (dynamic->d_tag == DT_SYMTAB)
			symbols.table = at;
		else if (dynamic->d_tag == DT_STRTAB)
			symbols.names = at;
		else if (dynamic->d_tag == DT_HASH)
			symbols.count = ((const uint32_t *)at)[1]; /* one chain link per symbol */
	}
	return symbols;
}

void *own_vdso_function(const char *name) {
	const ElfW(Ehdr) *header = (const void *)getauxval(AT_SYSINFO_EHDR);
	const ElfW(Phdr) * segment;
	const ElfW(Dyn) *dynamic = NULL;
	uintptr_t base = (uintptr_t)header;
	struct symbols symbols;

	if (!header)
		return NULL;
	segment = (const void *)((const char *)header + header->e_phoff);
	for (int i = 0; i < header->e_phnum; i++) {
		if (segment[i].p_type == PT_LOAD)
			base = (uintptr_t)header + segment[i].p_offset - segment[i].p_vaddr;
		else if (segment[i].p_type == PT_DYNAMIC)
			dynamic = (const void *)((const char *)header + segment[i].p_offset);
	}
	if (!dynamic)
		return NULL;
	symbols = find_symbols(dynamic, base);
	for (uint32_t i = 0; i < symbols.count; i++) {
		const ElfW(Sym) *symbol = &symbols.table[i];

		if (symbol->st_shndx != SHN_UNDEF && strcmp(symbols.names + symbol->st_name, name) == 0)
			return (void *)(base + symbol->st_value);
	}
	return NULL;
}
