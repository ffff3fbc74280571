/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Turns this process into the program. */
#ifndef LOADER_PROGRAM_H
#define LOADER_PROGRAM_H

#include "vdso.h"

struct program {
	const char *path;
	int fd; /* open for reading */
	char **argv, **envp;
	uintptr_t vdso;      /* address of the image */
	uintptr_t vsyscall;  /* i386: that of __kernel_vsyscall, or 0 */
	void (*enter)(void); /* called last, or NULL */
};

/* Seals the image, closes the page's descriptor, and becomes the program of a command. Returns only if that fails,
 * after a message. */
void become_command(char **command, char **envp, int page_fd, const struct vdso *vdso);
/* Returns only if the program cannot be loaded, after a message. */
void become_program(const struct program *program);

#endif
