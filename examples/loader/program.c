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
	static unsigned char seed[RANDOM_BYTES];
	const uintptr_t vsyscall = vdso_symbol(vdso, "__kernel_vsyscall");
	struct mapped main, interpreter = {0};

	if (seal_vdso(vdso))
		return;
	close(page_fd);
	if (map_elf(command[0], &main))
		return;
	if (main.interpreter[0] && map_elf(main.interpreter, &interpreter))
		return;
	if (getrandom(seed, sizeof(seed), 0) != sizeof(seed)) {
		complain_errno("getrandom");
		return;
	}
	unregister_rseq(envp);
	{
		const struct auxv_entry changes[] = {
		    {AT_SYSINFO_EHDR, (uintptr_t)vdso->address},
		    {AT_PHDR, main.headers},
		    {AT_PHENT, main.header_size},
		    {AT_PHNUM, main.header_count},
		    {AT_ENTRY, main.entry},
		    {AT_BASE, interpreter.base},
		    {AT_EXECFN, (uintptr_t)command[0]},
		    {AT_RANDOM, (uintptr_t)seed},
		    /* i386: libc makes every system call through it. */
		    {vsyscall ? AT_SYSINFO : AT_NULL, vsyscall},
		    {AT_NULL, 0},
		};

		enter_on_new_stack(interpreter.entry ? interpreter.entry : main.entry, command, envp, changes);
	}
}
