/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The functions of the vDSO that this process was started with, by name and address, for calls that bypass libc. */
#ifndef OWN_VDSO_H
#define OWN_VDSO_H

/* Returns NULL if there is no vDSO, or if it has no such function. */
void *own_vdso_function(const char *name);

#endif
