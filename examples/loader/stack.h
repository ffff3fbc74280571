/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* What a program finds on its stack at its start: arguments, environment, auxiliary vector. */
#ifndef LOADER_STACK_H
#define LOADER_STACK_H

#include <stdint.h>

/* What the auxiliary vector says differently from the loader's own. */
struct auxv_entry {
	uintptr_t type, value;
};

/*
 * Enters the program on this thread's stack, below the frames that are there: the strings of the arguments and the
 * environment stay where the kernel has put them. `changes` ends with AT_NULL.
 */
_Noreturn void enter_on_new_stack(uintptr_t entry, char **argv, char **envp, const struct auxv_entry *changes);

/* An entry of the auxiliary vector that the loader itself was started with; 0: it has none. */
uintptr_t own_auxv(char **envp, uintptr_t type);

#endif
