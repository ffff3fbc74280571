/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "isa.h"
#include "syscall.h"

/*
 * time() is aligned to the kernel's tick, as the COARSE clocks are: only the kernel knows it. Where its vDSO has the
 * function, the symbol points there (core/image/src/instance.rs), and this is never reached.
 */
long FP_NAME(time)(long *seconds) { return fp_syscall1(FP_NR_time, (long)seconds); }
FP_ALIAS(time)
