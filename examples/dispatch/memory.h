/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Memory at addresses that a guest states: bad ones are -EFAULT, as from the kernel. */
#ifndef DISPATCH_MEMORY_H
#define DISPATCH_MEMORY_H

#include <stddef.h>
#include <stdint.h>

/* Both return 0 or -EFAULT. */
long read_guest(void *to, uint64_t from, size_t size);
long write_guest(uint64_t to, const void *from, size_t size);
/* Returns the length of a string, which is terminated in `to`: -ENAMETOOLONG if it does not fit. */
long read_guest_string(char *to, uint64_t from, size_t size);

#endif
