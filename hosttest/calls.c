/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The ways to make a call (calls.h).
 */
#include "calls.h"

#include <errno.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "isa.h"

const char *const way_names[WAYS] = {"truth", "site", "syscall()", "libc", "__fastpath_syscall"};

#define SITE_OF(name) DEFINE_SITE(site_##name, SYS_##name)
ALL_CALLS(SITE_OF)

static long result_of(long result) { return result == -1 ? -errno : result; }

/* Defines a wrapper of libc's function. gettid has none, because musl answers it by itself; clocks have none, because
 * their functions are the vDSO's, which does not have to survive bad pointers. */
#define LIBC(name, expression)                                                                                         \
	static long libc_##name(long a, long b, long c) {                                                              \
		(void)a, (void)b, (void)c;                                                                             \
		return expression;                                                                                     \
	}
LIBC(getpid, getpid())
LIBC(getppid, getppid())
LIBC(getpgid, result_of(getpgid(a)))
LIBC(getsid, result_of(getsid(a)))
LIBC(getuid, getuid())
LIBC(geteuid, geteuid())
LIBC(getgid, getgid())
LIBC(getegid, getegid())
LIBC(setfsuid, setfsuid(a))
LIBC(setfsgid, setfsgid(a))
LIBC(getresuid, result_of(getresuid((void *)a, (void *)b, (void *)c)))
LIBC(getresgid, result_of(getresgid((void *)a, (void *)b, (void *)c)))
LIBC(getrandom, result_of(getrandom((void *)a, b, c)))
LIBC(read, result_of(read(a, (void *)b, c)))
#ifdef SYS_getpgrp
LIBC(getpgrp, getpgrp())
#endif

#define libc_gettid NULL
#define libc_clock_gettime NULL
#define libc_clock_getres NULL
#define libc_gettimeofday NULL

#define DESCRIBE(name) [CALL_##name] = {#name, SYS_##name, site_##name, libc_##name},
const struct call calls[CALLS] = {ALL_CALLS(DESCRIBE)};

static long (*truth_function)(long number, long a, long b, long c);

int calls_prepare(void) {
	void *code = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (code == MAP_FAILED)
		return -1;
	memcpy(code, truth_code, sizeof(truth_code));
	__builtin___clear_cache((char *)code, (char *)code + sizeof(truth_code));
	if (mprotect(code, 4096, PROT_READ | PROT_EXEC))
		return -1;
	memcpy(&truth_function, &code, sizeof(code));
	find_entry();
	return 0;
}

long truth(long number, long a, long b, long c) { return truth_function(number, a, b, c); }

int has_way(enum way way, enum call_id call) {
	if (way == BY_LIBC)
		return calls[call].libc != NULL;
	return way != BY_ENTRY || entry_address;
}

long ask_number(enum way way, long number, long a, long b, long c) {
	if (way == BY_TRUTH)
		return truth(number, a, b, c);
	if (way == BY_ENTRY)
		return by_entry(number, a, b, c);
	return result_of(syscall(number, a, b, c));
}

long ask(enum way way, enum call_id call, long a, long b, long c) {
	if (way == BY_SITE)
		return calls[call].site(a, b, c);
	if (way == BY_LIBC)
		return calls[call].libc(a, b, c);
	return ask_number(way, calls[call].number, a, b, c);
}
