/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* /proc/self/exe, which is the host's file, and stands for the guest's program. */
#include "memory.h"
#include "trap.h"

#include <errno.h>
#include <string.h>
#include <sys/syscall.h>

enum { LONGEST = 40 };

const char *own_program;

static const char *skip_number(const char *text, long number) {
	const char *start = text;
	long read = 0;

	while (*text >= '0' && *text <= '9')
		read = read * 10 + (*text++ - '0');
	return text > start && read == number ? text : NULL;
}

static int is_own_exe(uint64_t address) {
	char path[LONGEST];
	const char *of = path;

	if (read_guest_string(path, address, sizeof(path)) < 0 || strncmp(of, "/proc/", 6) != 0)
		return 0;
	of += 6;
	if (strncmp(of, "self", 4) == 0)
		of += 4;
	else if (strncmp(of, "thread-self", 11) == 0)
		of += 11;
	else
		of = skip_number(of, CALL_1(SYS_getpid, 0));
	return of && strcmp(of, "/exe") == 0;
}

/* Returns the index of the path in the arguments of a call, or -1. */
static int path_argument(long number) {
	switch (number) {
	case SYS_open:
	case SYS_execve:
		return 0;
	case SYS_openat:
	case 437: /* openat2 */
	case SYS_execveat:
		return 1;
	default:
		return -1;
	}
}

void name_own_program(struct trap *trap) {
	const int index = path_argument(trap->number);

	if (index >= 0 && is_own_exe(trap->arguments[index]))
		trap->arguments[index] = (uintptr_t)own_program;
}

static long read_own_link(uint64_t to, uint64_t size) {
	const size_t length = strlen(own_program);

	if ((int64_t)size <= 0)
		return -EINVAL;
	if (size > length)
		size = length;
	return write_guest(to, own_program, size) ? -EFAULT : (long)size;
}

int treat_paths(struct trap *trap) {
	const uint64_t *of = trap->arguments;

	if (trap->number == SYS_readlink && is_own_exe(of[0]))
		finish(trap, read_own_link(of[1], of[2]));
	else if (trap->number == SYS_readlinkat && is_own_exe(of[1]))
		finish(trap, read_own_link(of[2], of[3]));
	else
		return 0;
	return 1;
}
