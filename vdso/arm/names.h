/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The names of this ISA's vDSO functions. versions.lds gives them their version. */
#ifndef FASTPATH_NAMES_H
#define FASTPATH_NAMES_H

#define FP_NAME(function) __attribute__((visibility("default"))) __vdso_##function

/* No second names. */
#define FP_ALIAS(function)

#endif
