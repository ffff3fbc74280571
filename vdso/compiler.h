/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* What C has no word for. */
#ifndef FASTPATH_COMPILER_H
#define FASTPATH_COMPILER_H

#define fp_likely(condition) __builtin_expect(!!(condition), 1)
#define fp_unlikely(condition) __builtin_expect(!!(condition), 0)

/* Part of its caller, which is itself hot. */
#define FP_INLINE static inline __attribute__((always_inline))
/* Out of line, away from the hot code. */
#define FP_COLD __attribute__((noinline, cold))
/* First in the image's code, from the start of a cache line. */
#define FP_HOT __attribute__((section(".text.hot"), aligned(64)))
/* Reached directly, not through a GOT, which this image does not have. */
#define FP_HIDDEN __attribute__((visibility("hidden")))

/*
 * The compiler no longer knows where this points, so it keeps the pointer in a register and reaches the fields by short
 * offsets, instead of spelling out the distance to each: the hot path is a third shorter for it.
 */
#define FP_FORGET_ORIGIN(pointer) __asm__("" : "+r"(pointer))

/* The compiler moves no access to memory across this. */
FP_INLINE void fp_compiler_barrier(void) { __asm__ volatile("" ::: "memory"); }

#endif
