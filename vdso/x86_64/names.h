/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The names of this ISA's vDSO functions. versions.lds gives them their version. */
#ifndef FASTPATH_NAMES_H
#define FASTPATH_NAMES_H

#define FP_NAME(function) __attribute__((visibility("default"))) __vdso_##function

/* The name without a prefix, weak, as in the kernel's vDSO for x86-64. */
#define FP_ALIAS(function)                                                                                             \
	extern __typeof__(__vdso_##function) function                                                                  \
	    __attribute__((weak, visibility("default"), alias("__vdso_" #function)));

#endif
