/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* System calls that trap: no host finds their instruction in a file, so none leads it elsewhere. */
#ifndef TRAPPING_H
#define TRAPPING_H

typedef long trapping_fn(long number, long a, long b, long c);

/* Returns a function that makes a system call, as the instruction does. It exists until the program ends. NULL: there
 * is no memory for it. */
trapping_fn *trapping_call(void);

#endif
