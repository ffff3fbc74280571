/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * execve and execveat: the host executes itself, with a descriptor of the program. Programs that it cannot load (those
 * of other ISAs, those that gain privileges, those that it cannot read) are the kernel's, and run without a host.
 *
 * What is needed for that does not fit an alternate stack, on which the handler may run.
 */
#include "inherited.h"
#include "memory.h"
#include "trap.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>

enum {
	/* Scripts whose interpreters are scripts, as in the kernel (fs/exec.c). */
	MOST_SCRIPTS = 5,
	/* Bytes of a file that say what it is (BINPRM_BUF_SIZE). */
	HEAD_BYTES = 256,
	/* dispatch, --program, the descriptors, the path; an interpreter, its argument, the script */
	MOST_OWN_ARGUMENTS = 4 + 3 * MOST_SCRIPTS,
	/* Executions at once whose memory is freed. */
	MOST_ROOMS = 16,
};

struct execution {
	long directory;
	uint64_t path;
	uint64_t arguments, environment;
	long flags;
	/* The file, open for reading. */
	long file;
	char head[HEAD_BYTES + 1];
	/* Its name for a script's interpreter, and AT_EXECFN. */
	char name[PATH_MAX];
	/* The interpreters of scripts, their arguments and the scripts: those of the first file last. */
	char texts[MOST_SCRIPTS][HEAD_BYTES + 1];
	const char *before[3 * MOST_SCRIPTS];
	unsigned befores;
	/* The guest's arguments, and those of the host. */
	long count;
	const char *all[];
};

/* Memory by the thread that uses it: that of a child of vfork remains when the child has executed its program. */
static struct {
	uint32_t owner;
	void *memory;
	size_t size;
} rooms[MOST_ROOMS];

static void *take_room(size_t size) {
	void *memory = map_memory(size, MAP_PRIVATE);
	uint64_t mask;

	if (!memory)
		return NULL;
	mask = enter();
	for (unsigned i = 0; i < MOST_ROOMS; i++)
		if (!rooms[i].memory) {
			rooms[i].owner = (uint32_t)CALL_1(SYS_gettid, 0);
			rooms[i].memory = memory;
			rooms[i].size = size;
			break;
		}
	leave(mask);
	return memory;
}

void free_rooms_of(uint32_t thread) {
	const uint64_t mask = enter();

	for (unsigned i = 0; i < MOST_ROOMS; i++)
		if (rooms[i].memory && rooms[i].owner == thread) {
			CALL_2(SYS_munmap, rooms[i].memory, rooms[i].size);
			rooms[i].memory = NULL;
		}
	leave(mask);
}

/* Names the file as the kernel does if a descriptor points to it: /dev/fd/N, or /dev/fd/N/PATH. */
static long name_file(struct execution *execution) {
	char *name = execution->name, *end;
	const long length = read_guest_string(name, execution->path, PATH_MAX);

	if (length < 0 || execution->directory == AT_FDCWD || name[0] == '/')
		return length < 0 ? length : 0;
	memcpy(name, "/dev/fd/", sizeof("/dev/fd/"));
	end = put_number(name + sizeof("/dev/fd/") - 1, (unsigned)execution->directory);
	if (length == 0)
		return 0;
	*end++ = '/';
	return read_guest_string(end, execution->path, (size_t)(name + PATH_MAX - end)) < 0 ? -ENAMETOOLONG : 0;
}

/* Opens what may be executed. Returns -errno if it may not be; the descriptor is -errno if it cannot be read. */
static long open_executable(struct execution *execution) {
	enum { FACCESSAT2 = 439 };
	const int no_follow = execution->flags & AT_SYMLINK_NOFOLLOW ? O_NOFOLLOW : 0;
	const long error =
	    CALL_4(FACCESSAT2, execution->directory, execution->path, X_OK, AT_EACCESS | execution->flags);
	long file;

	if (error && error != -ENOSYS)
		return error;
	/* Without waiting: it may be a FIFO. */
	file = CALL_4(SYS_openat, execution->directory, execution->path, O_RDONLY | O_NONBLOCK | no_follow, 0);
	/* A descriptor with an empty path: opened anew, because its position and flags are the guest's. */
	if (file == -ENOENT && execution->flags & AT_EMPTY_PATH) {
		char link[LINK_BYTES];

		file = CALL_4(SYS_openat, AT_FDCWD, put_link(link, (unsigned)execution->directory),
			      O_RDONLY | O_NONBLOCK, 0);
	}
	execution->file = file;
	return 0;
}

/* Reads what the file is. Returns whether this is a program or script that the host can load. */
static int is_loadable(struct execution *execution) {
	const Elf64_Ehdr *header = (const void *)execution->head;
	struct stat status;
	long got;

	memset(execution->head, 0, sizeof(execution->head));
	got = CALL_4(SYS_pread64, execution->file, execution->head, HEAD_BYTES, 0);
	if (got < 2 || CALL_2(SYS_fstat, execution->file, &status) || !S_ISREG(status.st_mode))
		return 0;
	if (status.st_mode & S_ISUID || (status.st_mode & S_ISGID && status.st_mode & S_IXGRP) ||
	    CALL_4(SYS_fgetxattr, execution->file, "security.capability", NULL, 0) > 0)
		return 0;
	if (memcmp(execution->head, "#!", 2) == 0)
		return 1;
	return got >= (long)sizeof(*header) && memcmp(header->e_ident, ELFMAG, SELFMAG) == 0 &&
	       header->e_ident[EI_CLASS] == ELFCLASS64 && header->e_machine == EM_X86_64;
}

static int is_blank(char c) { return c == ' ' || c == '\t'; }

/* Replaces a script by its interpreter, as fs/binfmt_script.c does. Returns 0 if the first line names none. */
static int follow_script(struct execution *execution, unsigned depth) {
	char *interpreter = execution->texts[depth], *argument, *end;

	memcpy(interpreter, execution->head, HEAD_BYTES + 1);
	interpreter += 2;
	end = strchr(interpreter, '\n');
	if (!end)
		return 0;
	while (end > interpreter && is_blank(end[-1]))
		end--;
	*end = '\0';
	while (is_blank(*interpreter))
		interpreter++;
	for (argument = interpreter; *argument && !is_blank(*argument); argument++)
		;
	while (is_blank(*argument))
		*argument++ = '\0';
	if (!*interpreter)
		return 0;
	/* Backwards: the last interpreter is the program. That of a script is itself the next one's script. */
	if (depth == 0)
		execution->before[execution->befores++] = execution->name;
	if (*argument)
		execution->before[execution->befores++] = argument;
	execution->before[execution->befores++] = interpreter;
	execution->directory = AT_FDCWD;
	execution->path = (uintptr_t)interpreter;
	execution->flags = 0;
	return 1;
}

/* Opens the program, or the interpreter of a script. Returns 0, -errno, or 1 if the kernel must execute the file. */
static long find_program(struct execution *execution) {
	for (unsigned depth = 0;; depth++) {
		const long error = open_executable(execution);

		if (error)
			return error;
		if (execution->file < 0 || !is_loadable(execution))
			return 1;
		if (execution->head[0] != '#')
			return 0;
		CALL_1(SYS_close, execution->file);
		execution->file = -1;
		if (depth == MOST_SCRIPTS - 1)
			return -ELOOP;
		if (!follow_script(execution, depth))
			return 1;
	}
}

/* Counts the guest's arguments, or returns -EFAULT. */
static long count_arguments(uint64_t at) {
	uint64_t argument;

	for (long count = 0; at; count++) {
		if (read_guest(&argument, at + (uint64_t)count * sizeof(argument), sizeof(argument)))
			return -EFAULT;
		if (!argument)
			return count;
	}
	return 0;
}

static char *describe(char *to, const struct execution *execution) {
	const unsigned numbers[] = {
	    (unsigned)execution->file,     (unsigned)inherited.page, (unsigned)inherited.host,
	    (unsigned)inherited.log,       inherited.flags,          (unsigned)inherited.publisher,
	    (unsigned)answers_know_users()};
	char *end = to;

	for (unsigned i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		if (i > 0)
			*end++ = ',';
		end = put_number(end, numbers[i]);
	}
	return to;
}

/* Executes the host. Returns -errno. */
static long execute_host(struct execution *execution) {
	char described[96];
	const char **all = execution->all;
	unsigned own = 0;
	/* A script replaces the first argument by its path. */
	const long skipped = execution->befores && execution->count ? 1 : 0;
	const size_t rest = (size_t)(execution->count - skipped);

	all[own++] = "dispatch";
	all[own++] = "--program";
	all[own++] = describe(described, execution);
	all[own++] = execution->name;
	for (unsigned i = execution->befores; i > 0; i--)
		all[own++] = execution->before[i - 1];
	if (rest && read_guest(all + own, execution->arguments + (uint64_t)skipped * sizeof(*all), rest * sizeof(*all)))
		return -EFAULT;
	own += (unsigned)rest;
	/* As the kernel has it for a program without arguments. */
	if (own == 4)
		all[own++] = "";
	all[own] = NULL;
	return CALL_5(SYS_execveat, inherited.host, "", all, execution->environment, AT_EMPTY_PATH);
}

/* Returns -errno, or 1 if the kernel must execute the file. */
static long execute(struct execution *execution) {
	long result = name_file(execution);

	if (result == 0)
		result = find_program(execution);
	if (result == 0)
		result = execute_host(execution);
	if (execution->file >= 0)
		CALL_1(SYS_close, execution->file);
	return result;
}

int treat_exec(struct trap *trap) {
	const uint64_t *of = trap->arguments;
	const int has_directory = trap->number == SYS_execveat;
	struct execution *execution;
	long count, result;

	if (trap->number != SYS_execve && trap->number != SYS_execveat)
		return 0;
	name_own_program(trap);
	count = count_arguments(of[1 + has_directory]);
	if (count < 0) {
		finish(trap, count);
		return 1;
	}
	execution = take_room(sizeof(*execution) + (size_t)(count + MOST_OWN_ARGUMENTS + 2) * sizeof(char *));
	if (!execution) {
		finish(trap, -ENOMEM);
		return 1;
	}
	execution->directory = has_directory ? (int)of[0] : AT_FDCWD;
	execution->path = of[has_directory];
	execution->arguments = of[1 + has_directory];
	execution->environment = of[2 + has_directory];
	execution->flags = has_directory ? (int)of[4] : 0;
	execution->count = count;
	execution->file = -1;
	result = execute(execution);
	free_rooms_of((uint32_t)CALL_1(SYS_gettid, 0));
	finish(trap, result > 0 ? make(trap) : result);
	return 1;
}
