/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "vdso.h"

#include <elf.h>
#include <stddef.h>

#include "isa.h"
#include "jump.h"
#include "text.h"

/* Returns whether one of these notes is that of fastpath's own image (core/image/vdso/note.S). */
static bool notes_name_fastpath(const char *note, const char *end) {
	while (end - note >= (ptrdiff_t)sizeof(Elf64_Nhdr)) {
		const Elf64_Nhdr *header = (const void *)note;
		const char *name = note + sizeof(*header);
		size_t size = ((header->n_namesz + 3ul) & ~3ul) + ((header->n_descsz + 3ul) & ~3ul);

		if (size > (size_t)(end - name))
			return false;
		if (header->n_namesz == sizeof("fastpath") && fp_same(name, "fastpath"))
			return true;
		note = name + size;
	}
	return false;
}

/* Returns whether an offset is in the middle of one of these functions. */
static bool is_in_function(const Elf64_Sym *symbol, const Elf64_Sym *end, uintptr_t offset) {
	for (; symbol < end; symbol++)
		if (ELF64_ST_TYPE(symbol->st_info) == STT_FUNC && offset > symbol->st_value &&
		    offset - symbol->st_value < symbol->st_size)
			return true;
	return false;
}

/* Returns whether a function begins with a jump out of the vDSO's file, which ends at `end_of_file`, or into another
 * function: `run` or `attach` put it there. */
static bool is_redirected(const struct vdso *vdso, uintptr_t end_of_file) {
	const Elf64_Ehdr *elf = (const void *)vdso->base;
	const Elf64_Shdr *section = (const void *)(vdso->base + elf->e_shoff);

	for (int i = 0; i < elf->e_shnum; i++, section++) {
		const Elf64_Sym *first = (const void *)(vdso->base + section->sh_offset);
		const Elf64_Sym *end = (const void *)(vdso->base + section->sh_offset + section->sh_size);

		for (const Elf64_Sym *symbol = first; section->sh_type == SHT_DYNSYM && symbol < end; symbol++) {
			if (ELF64_ST_TYPE(symbol->st_info) != STT_FUNC || !symbol->st_size)
				continue;
			uintptr_t target = fp_jump_target((const unsigned char *)vdso->base + symbol->st_value);
			if (target && (target < vdso->base || target >= end_of_file ||
				       is_in_function(first, end, target - vdso->base)))
				return true;
		}
	}
	return false;
}

bool fp_vdso(uintptr_t base, uintptr_t page_size, struct vdso *vdso, struct why *why) {
	if (!base)
		return fp_because(why, "the kernel gave this process no vDSO", 0);
	static const char already[] = "it is on fastpath's vDSO already";
	const Elf64_Ehdr *elf = (const void *)base;
	if (elf->e_ident[EI_CLASS] != ELFCLASS64 || elf->e_machine != FP_MACHINE)
		return fp_because(why, "the vDSO is not one for this kind of program", 0);

	/* All of the file is mapped: its segments, and its section table, with which it ends. */
	uintptr_t size = elf->e_shoff + (uintptr_t)elf->e_shnum * elf->e_shentsize;
	const Elf64_Phdr *segment = (const void *)(base + elf->e_phoff);
	for (int i = 0; i < elf->e_phnum; i++, segment++) {
		const char *start = (const char *)base + segment->p_offset;
		if (segment->p_type == PT_LOAD && segment->p_offset + segment->p_filesz > size)
			size = segment->p_offset + segment->p_filesz;
		if (segment->p_type == PT_NOTE && notes_name_fastpath(start, start + segment->p_filesz))
			return fp_because(why, already, 0);
	}
	vdso->base = base;
	vdso->end = base + ((size + page_size - 1) & ~(page_size - 1));
	return !is_redirected(vdso, base + size) || fp_because(why, already, 0);
}
