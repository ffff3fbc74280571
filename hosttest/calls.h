/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The calls that a host may answer, and the ways to make them. All results are as the kernel's: -errno for an error.
 */
#ifndef CALLS_H
#define CALLS_H

#include <sys/syscall.h>

/* Ways to make a call. A host may answer all but the first. */
enum way {
	/* An instruction in memory that the program maps, which no host can have prepared. */
	BY_TRUTH,
	/* The number and the instruction in the program's code. */
	BY_SITE,
	/* The function syscall of libc. */
	BY_SYSCALL,
	/* libc's function for the call. */
	BY_LIBC,
	/* __fastpath_syscall of the image at AT_SYSINFO_EHDR. */
	BY_ENTRY,
	WAYS
};

#ifdef SYS_getpgrp
#define IF_GETPGRP(x) x(getpgrp)
#else
#define IF_GETPGRP(x)
#endif

#define ALL_CALLS(x)                                                                                                   \
	x(getpid) x(gettid) x(getppid) x(getpgid) x(getsid) x(getuid) x(geteuid) x(getgid) x(getegid) x(setfsuid)      \
	    x(setfsgid) x(getresuid) x(getresgid) x(getrandom) x(read) x(clock_gettime) x(clock_getres)                \
		x(gettimeofday) IF_GETPGRP(x)

#define CALL_ID(name) CALL_##name,
enum call_id { ALL_CALLS(CALL_ID) CALLS };
#undef CALL_ID

struct call {
	const char *name;
	long number;
	/* The call's own instruction, with the number beside it. */
	long (*site)(long, long, long);
	/* libc's function, if the library does not answer by itself. */
	long (*libc)(long, long, long);
};

extern const struct call calls[CALLS];
extern const char *const way_names[WAYS];

/* Finds the entry point of the image, and maps the instruction for BY_TRUTH. Returns -1 if that is not possible. */
int calls_prepare(void);
int has_way(enum way way, enum call_id call);
long ask(enum way way, enum call_id call, long a, long b, long c);
/* By any way but BY_SITE and BY_LIBC. */
long ask_number(enum way way, long number, long a, long b, long c);

/* BY_TRUTH, for any call. */
long truth(long number, long a, long b, long c);

/* Address of __fastpath_syscall, or 0 (entry.c). */
extern unsigned long entry_address;
void find_entry(void);
long by_entry(long number, long a, long b, long c);

#endif
