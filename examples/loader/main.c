/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * loader [--verbose] PROGRAM [ARGS]: runs an ELF program, static or dynamic, on the synthetic vDSO.
 *
 * It needs no exec: this process maps the program as the kernel would, with AT_SYSINFO_EHDR pointing to libfastpath's
 * image, and jumps to it. So it works wherever programs can be mapped, under an emulator too, and without ptrace. The
 * program runs in a child; the parent keeps its page fresh, and ends as the program does.
 *
 * Limit: programs that the program itself starts are loaded by the kernel, as always.
 */
#include "host.h"
#include "program.h"

#include <stdio.h>
#include <string.h>

static void become(char **command, char **envp, int page_fd, uint32_t flags) {
	struct vdso vdso;

	if (map_vdso(page_fd, flags, &vdso) == 0)
		become_command(command, envp, page_fd, &vdso);
}

int main(int argc, char **argv, char **envp) {
	const int verbose = argc > 1 && strcmp(argv[1], "--verbose") == 0;
	char **command = argv + 1 + verbose;

	if (!*command || **command == '-') {
		fputs("usage: loader [--verbose] PROGRAM [ARGS]\n", stderr);
		return EXIT_LOADER_FAILED;
	}
	return host_program(become, command, envp, verbose);
}
