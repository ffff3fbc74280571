/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "map_elf.h"
#include "loader.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Debian's largest programs have 14. */
enum { MAX_HEADERS = 64 };

struct file {
	const char *path;
	int fd;
	ElfW(Ehdr) header;
	ElfW(Phdr) segments[MAX_HEADERS];
};

__attribute__((format(printf, 2, 3))) static int complain_of_file(const struct file *file, const char *format, ...) {
	va_list arguments;

	fprintf(stderr, "%s: %s: ", program_invocation_short_name, file->path);
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
	return -1;
}

static int complain_of_file_errno(const struct file *file, const char *what) {
	return complain_of_file(file, "%s: %s", what, strerror(errno));
}

static int read_at(const struct file *file, void *buffer, size_t size, off_t offset) {
	return pread(file->fd, buffer, size, offset) == (ssize_t)size ? 0 : -1;
}

static int read_headers(struct file *file) {
	const ElfW(Ehdr) *header = &file->header;
	size_t size;

	if (read_at(file, &file->header, sizeof(file->header), 0) || memcmp(header->e_ident, ELFMAG, SELFMAG) != 0)
		return complain_of_file(file, "not an ELF program (for a script, give its interpreter)");
	if (header->e_machine != LOADER_MACHINE || header->e_ident[EI_CLASS] != LOADER_CLASS)
		return complain_of_file(file, "a program for another machine (%d) than this loader is for (%d)",
					header->e_machine, LOADER_MACHINE);
	if (header->e_type != ET_EXEC && header->e_type != ET_DYN)
		return complain_of_file(file, "neither a program nor a shared object (ELF type %d)", header->e_type);
	if (header->e_phentsize != sizeof(ElfW(Phdr)) || header->e_phnum == 0 || header->e_phnum > MAX_HEADERS)
		return complain_of_file(file, "%d program headers; 1 to %d can be read", header->e_phnum, MAX_HEADERS);
	size = header->e_phnum * sizeof(ElfW(Phdr));
	if (read_at(file, file->segments, size, (off_t)header->e_phoff))
		return complain_of_file(file, "the program headers lie beyond its end");
	return 0;
}

static uintptr_t page_down(uintptr_t address) { return address & ~((uintptr_t)sysconf(_SC_PAGESIZE) - 1); }

static uintptr_t page_up(uintptr_t address) { return page_down(address + (uintptr_t)sysconf(_SC_PAGESIZE) - 1); }

/* The addresses that all segments take together, as the file states them. */
struct span {
	uintptr_t start, end, align;
};

static int find_span(const struct file *file, struct span *span) {
	*span = (struct span){.start = UINTPTR_MAX, .align = (uintptr_t)sysconf(_SC_PAGESIZE)};
	for (size_t i = 0; i < file->header.e_phnum; i++) {
		const ElfW(Phdr) *segment = &file->segments[i];
		uintptr_t end = segment->p_vaddr + segment->p_memsz;

		if (segment->p_type != PT_LOAD)
			continue;
		if (end < segment->p_vaddr || segment->p_filesz > segment->p_memsz)
			return complain_of_file(file, "segment %zu has a size that cannot be", i);
		if (segment->p_vaddr < span->start)
			span->start = page_down(segment->p_vaddr);
		if (end > span->end)
			span->end = page_up(end);
		if (segment->p_align > span->align)
			span->align = segment->p_align;
	}
	return span->start < span->end ? 0 : complain_of_file(file, "it has no loadable segment");
}

/* Reserves address space for the whole span, with nothing mapped in it. Returns -1 after a message. */
static int reserve(const struct file *file, const struct span *span, uintptr_t *base) {
	const int movable = file->header.e_type == ET_DYN;
	const size_t size = span->end - span->start, slack = movable ? span->align : 0;
	void *wanted = movable ? NULL : (void *)span->start;
	char *at = mmap(wanted, size + slack, PROT_NONE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (movable ? 0 : MAP_FIXED_NOREPLACE), -1, 0);
	uintptr_t start;

	/* Kernels and emulators without MAP_FIXED_NOREPLACE take the address for a hint. */
	if (at != MAP_FAILED && !movable && at != wanted) {
		munmap(at, size);
		errno = EEXIST;
		at = MAP_FAILED;
	}
	if (at == MAP_FAILED)
		return complain_of_file(file, "no room for its %zu bytes at %p: %s", size, wanted, strerror(errno));
	start = ((uintptr_t)at + slack) & ~(span->align - 1);
	*base = movable ? start - (span->start & ~(span->align - 1)) : 0;
	return 0;
}

static int protection(const ElfW(Phdr) * segment) {
	return (segment->p_flags & PF_R ? PROT_READ : 0) | (segment->p_flags & PF_W ? PROT_WRITE : 0) |
	       (segment->p_flags & PF_X ? PROT_EXEC : 0);
}

/* Maps a segment's bytes from the file, followed by zeros. */
static int map_segment(const struct file *file, const ElfW(Phdr) * segment, uintptr_t base) {
	const uintptr_t start = base + segment->p_vaddr, file_end = start + segment->p_filesz;
	const uintptr_t end = start + segment->p_memsz,
			mapped_end = segment->p_filesz ? page_up(file_end) : page_down(start);
	const uintptr_t before = start - page_down(start);

	if (segment->p_filesz &&
	    mmap((void *)page_down(start), segment->p_filesz + before, protection(segment), MAP_PRIVATE | MAP_FIXED,
		 file->fd, (off_t)(segment->p_offset - before)) == MAP_FAILED)
		return complain_of_file_errno(file, "mapping a segment");
	/* Zero up to the end of the page, beyond the segment's end: glibc's loader keeps its first objects there,
	 * and assumes zeros. */
	if (end > file_end && segment->p_filesz && segment->p_flags & PF_W)
		memset((void *)file_end, 0, mapped_end - file_end);
	if (end > mapped_end && mmap((void *)mapped_end, page_up(end) - mapped_end, protection(segment),
				     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
		return complain_of_file_errno(file, "mapping a segment's zeros");
	return 0;
}

static int read_interpreter(const struct file *file, const ElfW(Phdr) * segment, char *interpreter) {
	if (segment->p_filesz == 0 || segment->p_filesz > PATH_MAX)
		return complain_of_file(file, "its interpreter's name is %lu bytes long",
					(unsigned long)segment->p_filesz);
	if (read_at(file, interpreter, segment->p_filesz, (off_t)segment->p_offset))
		return complain_of_file(file, "its interpreter's name lies beyond its end");
	interpreter[segment->p_filesz - 1] = '\0';
	return 0;
}

static int map_file(const struct file *file, struct mapped *mapped) {
	const ElfW(Ehdr) *header = &file->header;
	struct span span;

	if (find_span(file, &span) || reserve(file, &span, &mapped->base))
		return -1;
	for (size_t i = 0; i < header->e_phnum; i++) {
		const ElfW(Phdr) *segment = &file->segments[i];

		if (segment->p_type == PT_LOAD && map_segment(file, segment, mapped->base))
			return -1;
		if (segment->p_type == PT_INTERP && read_interpreter(file, segment, mapped->interpreter))
			return -1;
		if (segment->p_type == PT_LOAD && header->e_phoff >= segment->p_offset &&
		    header->e_phoff < segment->p_offset + segment->p_filesz)
			mapped->headers = mapped->base + segment->p_vaddr + (header->e_phoff - segment->p_offset);
	}
	mapped->header_size = header->e_phentsize;
	mapped->header_count = header->e_phnum;
	mapped->entry = mapped->base + header->e_entry;
	return 0;
}

int map_elf(const char *path, struct mapped *mapped) {
	struct file file = {.path = path, .fd = open(path, O_RDONLY | O_CLOEXEC)};
	int failed;

	*mapped = (struct mapped){0};
	if (file.fd < 0)
		return complain_of_file_errno(&file, "opening it");
	failed = read_headers(&file) || map_file(&file, mapped);
	close(file.fd);
	return failed ? -1 : 0;
}
