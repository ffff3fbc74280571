/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "program.h"
#include "map_elf.h"
#include "rseq.h"
#include "stack.h"

#include <elf.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

/* Size of AT_RANDOM's data: seeds for the libc's canary and mangled pointers. */
enum { RANDOM_BYTES = 16 };

void become_program(char **argv, char **envp, const struct vdso *vdso) {
	static unsigned char seed[RANDOM_BYTES];
	struct mapped program, interpreter = {0};

	if (map_elf(argv[0], &program))
		return;
	if (program.interpreter[0] && map_elf(program.interpreter, &interpreter))
		return;
	if (getrandom(seed, sizeof(seed), 0) != sizeof(seed)) {
		fprintf(stderr, "loader: getrandom: %s\n", strerror(errno));
		return;
	}
	unregister_rseq(envp);
	{
		const struct auxv_entry changes[] = {
		    {AT_SYSINFO_EHDR, (uintptr_t)vdso->address},
		    {AT_PHDR, program.headers},
		    {AT_PHENT, program.header_size},
		    {AT_PHNUM, program.header_count},
		    {AT_ENTRY, program.entry},
		    {AT_BASE, interpreter.base},
		    {AT_EXECFN, (uintptr_t)argv[0]},
		    {AT_RANDOM, (uintptr_t)seed},
		    /* i386: libc makes every system call through it. */
		    {vdso_symbol(vdso, "__kernel_vsyscall") ? AT_SYSINFO : AT_NULL,
		     vdso_symbol(vdso, "__kernel_vsyscall")},
		    {AT_NULL, 0},
		};

		enter_on_new_stack(interpreter.entry ? interpreter.entry : program.entry, argv, envp, changes);
	}
}
