/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "memory.h"
#include "gate.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>

/* By calls that copy within one process. */
static long copy(long call, const void *own, uint64_t guest, size_t size) {
	const struct iovec here = {(void *)(uintptr_t)own, size}, there = {(void *)guest, size};

	/* A process without its first thread is not found by its own id. */
	return CALL_6(call, CALL_1(SYS_gettid, 0), &here, 1, &there, 1, 0) == (long)size ? 0 : -EFAULT;
}

long read_guest(void *to, uint64_t from, size_t size) { return copy(SYS_process_vm_readv, to, from, size); }

long write_guest(uint64_t to, const void *from, size_t size) { return copy(SYS_process_vm_writev, from, to, size); }

long read_guest_string(char *to, uint64_t from, size_t size) {
	size_t length = 0;

	/* In parts that cross no page, the next of which may not be there. */
	while (length < size) {
		const size_t in_page = FASTPATH_PAGE_SIZE - (from + length) % FASTPATH_PAGE_SIZE;
		const size_t part = in_page < size - length ? in_page : size - length;
		const char *end;

		if (read_guest(to + length, from + length, part))
			return -EFAULT;
		end = memchr(to + length, '\0', part);
		if (end)
			return end - to;
		length += part;
	}
	return -ENAMETOOLONG;
}

void *map_memory(size_t size, int flags) {
	const long at = CALL_6(SYS_mmap, 0, size, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);

	return (unsigned long)at > -4096UL ? NULL : (void *)at;
}

char *put_number(char *to, unsigned number) {
	char digits[12];
	int count = 0;

	do
		digits[count++] = (char)('0' + number % 10);
	while ((number /= 10) != 0);
	while (count)
		*to++ = digits[--count];
	*to = '\0';
	return to;
}

const char *put_link(char path[LINK_BYTES], unsigned descriptor) {
	static const char folder[] = "/proc/self/fd/";

	memcpy(path, folder, sizeof(folder));
	put_number(path + sizeof(folder) - 1, descriptor);
	return path;
}
