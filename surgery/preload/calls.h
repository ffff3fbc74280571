/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * System calls without the C library: errno does not change, no function of the program can intervene, and glibc and
 * musl are alike. Each returns the kernel's result: a negative errno on failure.
 */
#ifndef FASTPATH_PRELOAD_CALLS_H
#define FASTPATH_PRELOAD_CALLS_H

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

#include "executable.h"
#include "page.h"
#include "syscall.h"

static inline bool fp_failed(long result) { return result < 0 && result >= -4095; }

static inline long fp_open(const char *path) {
	return fp_syscall4(FP_NR_openat, AT_FDCWD, (long)path, O_RDONLY | O_CLOEXEC, 0);
}

static inline long fp_read(int fd, void *to, size_t size) {
	return fp_syscall4(FP_NR_read, fd, (long)to, (long)size, 0);
}

static inline long fp_read_at(int fd, void *to, size_t size, uint64_t offset) {
	return fp_syscall4(FP_NR_pread64, fd, (long)to, (long)size, (long)offset);
}

static inline void fp_close(int fd) { fp_syscall4(FP_NR_close, fd, 0, 0, 0); }

static inline long fp_map(uintptr_t at, size_t size, int protection, int flags, int fd, uint32_t offset) {
	return fp_syscall6(FP_NR_mmap, (long)at, (long)size, protection, flags, fd, (long)offset);
}

static inline long fp_unmap(uintptr_t at, size_t size) { return fp_syscall4(FP_NR_munmap, (long)at, (long)size, 0, 0); }

static inline long fp_protect(uintptr_t at, size_t size, int protection) {
	return fp_syscall4(FP_NR_mprotect, (long)at, (long)size, protection, 0);
}

#endif
