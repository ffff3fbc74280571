/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* many-mappings NUMBER: maps pages of the C library's code as often as that, prints `ready`, and waits. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

int main(int argc, char **argv) {
	const long page = sysconf(_SC_PAGESIZE), number = argc > 1 ? atol(argv[1]) : 0;
	Dl_info library;
	const int file = dladdr((void *)printf, &library) ? open(library.dli_fname, O_RDONLY | O_CLOEXEC) : -1;
	/* Every other page, so that the kernel does not merge them. */
	char *room = mmap(NULL, (size_t)(2 * page * number), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (file < 0 || room == MAP_FAILED)
		return 1;
	for (long i = 0; i < number; i++)
		if (mmap(room + 2 * page * i, (size_t)page, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, file,
			 i % 100 * page) == MAP_FAILED)
			return 2;
	puts("ready");
	fflush(stdout);
	for (;;)
		nanosleep(&(struct timespec){1, 0}, NULL);
}
