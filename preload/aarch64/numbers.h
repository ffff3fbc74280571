/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* System calls in addition to those of hook/aarch64/syscall.h. include/uapi/asm-generic/unistd.h */
#ifndef FASTPATH_PRELOAD_NUMBERS_H
#define FASTPATH_PRELOAD_NUMBERS_H

enum {
	FP_NR_openat = 56,
	FP_NR_close = 57,
	FP_NR_read = 63,
	FP_NR_write = 64,
	FP_NR_pread64 = 67,
	FP_NR_exit_group = 94,
	FP_NR_socket = 198,
	FP_NR_connect = 203,
	FP_NR_setsockopt = 208,
	FP_NR_sendmsg = 211,
	FP_NR_recvmsg = 212,
	FP_NR_munmap = 215,
	FP_NR_clone = 220,
	FP_NR_mprotect = 226,
	FP_NR_wait4 = 260,
	FP_NR_prlimit64 = 261,
};

/* EM_AARCH64, <elf.h> */
#define FP_MACHINE 183

/* A branch reaches 128 megabytes. */
#define FP_REACH 0x7f00000ul

/* Arm Architecture Reference Manual, B2.4.4: cleans what was written as data to the point from which instructions
 * are fetched, and invalidates the instruction cache. CTR_EL0 holds the sizes of the cache lines, as logarithms of
 * words. */
static inline void fp_make_executable(const void *start, const void *end) {
	unsigned long type, from = (unsigned long)start, to = (unsigned long)end;

	__asm__ volatile("mrs %0, ctr_el0" : "=r"(type));
	unsigned long data = 4ul << (type >> 16 & 15), instructions = 4ul << (type & 15);
	for (unsigned long line = from & -data; line < to; line += data)
		__asm__ volatile("dc cvau, %0" ::"r"(line) : "memory");
	__asm__ volatile("dsb ish" ::: "memory");
	for (unsigned long line = from & -instructions; line < to; line += instructions)
		__asm__ volatile("ic ivau, %0" ::"r"(line) : "memory");
	__asm__ volatile("dsb ish\n\tisb" ::: "memory");
}

#endif
