/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "program.h"
#include "complain.h"
#include "map_elf.h"
#include "rseq.h"
#include "stack.h"

#include <elf.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

/* Size of AT_RANDOM's data: seeds for the libc's canary and mangled pointers. */
enum { RANDOM_BYTES = 16 };

void become_command(char **command, char **envp, int page_fd, const struct vdso *vdso) {
	const struct program program = {
	    .path = command[0],
	    .fd = open_elf(command[0]),
	    .argv = command,
	    .envp = envp,
	    .vdso = (uintptr_t)vdso->address,
	    .vsyscall = vdso_symbol(vdso, "__kernel_vsyscall"),
	};

	if (program.fd < 0 || seal_vdso(vdso))
		return;
	close(page_fd);
	become_program(&program);
}

void become_program(const struct program *program) {
	static unsigned char seed[RANDOM_BYTES];
	struct mapped main, interpreter = {0};

	if (map_elf(program->path, program->fd, &main))
		return;
	if (main.interpreter[0] && map_elf_at(main.interpreter, &interpreter))
		return;
	if (getrandom(seed, sizeof(seed), 0) != sizeof(seed)) {
		complain_errno("getrandom");
		return;
	}
	close(program->fd);
	unregister_rseq(program->envp);
	{
		const struct auxv_entry changes[] = {
		    {AT_SYSINFO_EHDR, program->vdso},
		    {AT_PHDR, main.headers},
		    {AT_PHENT, main.header_size},
		    {AT_PHNUM, main.header_count},
		    {AT_ENTRY, main.entry},
		    {AT_BASE, interpreter.base},
		    {AT_EXECFN, (uintptr_t)program->path},
		    {AT_RANDOM, (uintptr_t)seed},
		    /* i386: libc makes every system call through it. */
		    {program->vsyscall ? AT_SYSINFO : AT_NULL, program->vsyscall},
		    {AT_NULL, 0},
		};

		if (program->enter)
			program->enter();
		enter_on_new_stack(interpreter.entry ? interpreter.entry : main.entry, program->argv, program->envp,
				   changes);
	}
}
