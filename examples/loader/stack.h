/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The stack of a program at its start: arguments, environment, auxiliary vector. */
#ifndef LOADER_STACK_H
#define LOADER_STACK_H

#include <stdint.h>

/* An entry of the auxiliary vector that differs from the loader's own. */
struct auxv_entry {
	uintptr_t type, value;
};

/*
 * Enters the program on this thread's stack, below the existing frames: the strings of the arguments and the
 * environment stay where the kernel has put them. `changes` ends with AT_NULL.
 */
_Noreturn void enter_on_new_stack(uintptr_t entry, char **argv, char **envp, const struct auxv_entry *changes);

/* Returns an entry of the auxiliary vector that the loader itself was started with, or 0 if it has none. */
uintptr_t own_auxv(char **envp, uintptr_t type);

#endif
