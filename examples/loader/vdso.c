/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "vdso.h"
#include "complain.h"

#include <elf.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <unistd.h>

int map_vdso(int page_fd, uint32_t instance_flags, struct vdso *vdso) {
	const fastpath_image *image = fastpath_image_of(fastpath_host_isa());
	const size_t size = fastpath_image_size(image);
	/* What the kernel maps at least. */
	const size_t page_room = (size_t)sysconf(_SC_PAGESIZE);
	/* i386: all system calls go through this entry to the kernel, which is several times as fast as `int $0x80`. */
	const struct fastpath_kernel_function way_in = {.name = "vsyscall", .address = getauxval(AT_SYSINFO)};
	struct fastpath_instance_options options = {.size = sizeof(options),
						    .flags = instance_flags,
						    .page_offset = -(int64_t)page_room,
						    .kernel_functions = &way_in,
						    .kernel_function_count = way_in.address != 0};
	/* One mapping for both, so that they are adjacent. */
	unsigned char *page = mmap(NULL, page_room + size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int written;

	if (page == MAP_FAILED ||
	    mmap(page, FASTPATH_PAGE_SIZE, PROT_READ, MAP_SHARED | MAP_FIXED, page_fd, 0) == MAP_FAILED)
		return complain_errno("mapping the page");
	*vdso = (struct vdso){.image = image, .address = page + page_room};
	options.address = (uintptr_t)vdso->address;
	written = fastpath_instantiate(image, &options, vdso->address, size);
	return written < 0 ? complain("making an instance of the image", fastpath_strerror(written)) : 0;
}

int seal_vdso(const struct vdso *vdso) {
	if (mprotect(vdso->address, fastpath_image_size(vdso->image), PROT_READ | PROT_EXEC))
		return complain_errno("making the image executable");
	return 0;
}

uintptr_t vdso_symbol(const struct vdso *vdso, const char *name) {
	const uint64_t offset = fastpath_image_symbol(vdso->image, name);

	return offset ? (uintptr_t)vdso->address + (uintptr_t)offset : 0;
}
