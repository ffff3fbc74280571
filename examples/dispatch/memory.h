/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Memory, and text in it, without libc's functions that use errno. */
#ifndef DISPATCH_MEMORY_H
#define DISPATCH_MEMORY_H

#include <stddef.h>
#include <stdint.h>

/* Memory at an address that the guest states. Both return 0 or -EFAULT. */
long read_guest(void *to, uint64_t from, size_t size);
long write_guest(uint64_t to, const void *from, size_t size);
/* Returns the length of a string, which is terminated in `to`: -ENAMETOOLONG if it does not fit. */
long read_guest_string(char *to, uint64_t from, size_t size);

/* Maps memory to read and write, MAP_PRIVATE or MAP_SHARED. Returns NULL if there is none. */
void *map_memory(size_t size, int flags);

/* Writes a number. Returns its end, where it is terminated. */
char *put_number(char *to, unsigned number);
enum { LINK_BYTES = 32 };
/* Writes the path of a descriptor's link. Returns `path`. */
const char *put_link(char path[LINK_BYTES], unsigned descriptor);

#endif
