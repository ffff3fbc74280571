/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "rseq.h"
#include "stack.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef __GLIBC__
#include <features.h>
#endif

#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 35)
#include <sys/rseq.h>
#endif

/* glibc defines the signature on the ISAs for which it registers an area. */
#ifdef RSEQ_SIG
#ifndef AT_RSEQ_FEATURE_SIZE
#define AT_RSEQ_FEATURE_SIZE 27
#endif

void unregister_rseq(char **envp) {
	/* The size that was registered: 32 bytes at first; since glibc 2.40, the size that the kernel can use. */
	const size_t known = own_auxv(envp, AT_RSEQ_FEATURE_SIZE);
	const size_t sizes[] = {32, (known + 31) & ~(size_t)31};
	const uintptr_t area = (uintptr_t)__builtin_thread_pointer() + (uintptr_t)__rseq_offset;

	if (__rseq_size == 0)
		return;
	/* If this fails, the program's libc runs without rseq, as on a kernel without it. */
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
		syscall(SYS_rseq, area, sizes[i], 1 /* RSEQ_FLAG_UNREGISTER */, RSEQ_SIG);
}
#else
/* This libc registers no area. */
void unregister_rseq(char **envp) { (void)envp; }
#endif
