/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Compiler extensions. */
#ifndef FASTPATH_COMPILER_H
#define FASTPATH_COMPILER_H

#include "isa.h"

#define fp_likely(condition) __builtin_expect(!!(condition), 1)
#define fp_unlikely(condition) __builtin_expect(!!(condition), 0)

/* Inlined into its caller, which is itself hot. */
#define FP_INLINE static inline __attribute__((always_inline))
/* Out of line, away from the hot code, and small: gcc optimizes `cold` functions for size, clang needs `minsize`. */
#ifdef __clang__
#define FP_COLD __attribute__((noinline, cold, minsize))
#else
#define FP_COLD __attribute__((noinline, cold))
#endif
/* The same for functions with a shift of 64 bits: for 32-bit ISAs, clang compiles a `minsize` one to a call of its
 * runtime. */
#ifdef __clang__
#define FP_OUTLINE __attribute__((noinline))
#else
#define FP_OUTLINE FP_COLD
#endif
/* Out of line where there is room: on 32-bit ISAs one page contains two calls for most clocks. */
#if __SIZEOF_POINTER__ == 8
#define FP_APART static FP_COLD
#else
#define FP_APART FP_INLINE
#endif
/* First in the image's code; where there is room, at the start of a cache line, or of half of one. */
#define FP_HOT __attribute__((section(".text.hot"), aligned(FP_HOT_ALIGNMENT)))
/* Reached directly, not through a GOT, which this image does not have. */
#define FP_HIDDEN __attribute__((visibility("hidden")))

/* Called from within the image only, with the arguments in registers on i386 too. */
#ifdef __i386__
#define FP_INTERNAL FP_HIDDEN __attribute__((regparm(3)))
#else
#define FP_INTERNAL FP_HIDDEN
#endif

/* The compiler moves no access to memory across this. */
FP_INLINE void fp_compiler_barrier(void) { __asm__ volatile("" ::: "memory"); }

#endif
