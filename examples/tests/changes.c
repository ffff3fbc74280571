/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * changes: makes the changes that end a guest's answers, and compares identities and random bytes with the truth after
 * each: by libc's function, by syscall(), and by the image's entry point if there is one. The truth comes from an
 * instruction in anonymous memory, which a host does not redirect. As root it changes ids, too. It prints what the
 * calls cost: in a host that answers them, libc's must cost a twentieth of the trap's at most. Exit statuses: 0; 1, an
 * answer was wrong; 2, it cannot run here; 3, all answers were right, but a call cost too much.
 */
#include "jump.h"
#include "own_vdso.h"
#include "trapping.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifdef __GLIBC__
#define IS_GLIBC 1
#else
#define IS_GLIBC 0
#endif

enum { THREADS = 4, REQUESTS = 2000, UNITS = 1 << 16 };

static trapping_fn *truth;
static unsigned long entry;
static int cost_too_much;

/* Shared by all processes of this program. */
struct shared {
	_Atomic unsigned long wrong, used;
	uint64_t unit[UNITS];
};
static struct shared *shared;

static long libc_gettid(void) { return syscall(SYS_gettid); }
static long libc_getpgid(void) { return getpgid(0); }
static long libc_getsid(void) { return getsid(0); }
#define LIBC(name)                                                                                                     \
	static long libc_##name(void) { return (long)name(); }
LIBC(getpid)
LIBC(getppid)
LIBC(getuid)
LIBC(geteuid)
LIBC(getgid)
LIBC(getegid)

static const struct {
	const char *name;
	long number;
	long (*libc)(void);
} identities[] = {
#define IDENTITY(name) #name, SYS_##name, libc_##name
    {IDENTITY(getpid)}, {IDENTITY(gettid)},  {IDENTITY(getppid)}, {IDENTITY(getpgid)}, {IDENTITY(getsid)},
    {IDENTITY(getuid)}, {IDENTITY(geteuid)}, {IDENTITY(getgid)},  {IDENTITY(getegid)},
};

static void wrong(const char *when, const char *what) {
	char text[200];
	const int length = snprintf(text, sizeof(text), "wrong after %s: %s\n", when, what);

	shared->wrong++;
	if (write(2, text, (size_t)length) < 0)
		_exit(3);
}

static void compare(const char *when) {
	for (size_t i = 0; i < sizeof(identities) / sizeof(identities[0]); i++) {
		const long number = identities[i].number, before = truth(number, 0, 0, 0);
		const long by[] = {identities[i].libc(), syscall(number, 0, 0, 0),
				   entry ? jump_to_entry(entry, number, 0, 0, 0) : before};

		/* The parent may end at any time. */
		for (int way = 0; way < 3; way++)
			if (by[way] != before && by[way] != truth(number, 0, 0, 0))
				wrong(when, identities[i].name);
	}
}

/* Keeps eight bytes of each request: if any are handed out twice, two units are equal. */
static void request(int urandom) {
	unsigned char bytes[300];

	for (int i = 0; i < REQUESTS; i++) {
		const size_t size = 8 + (size_t)i % 290;
		const ssize_t got = i % 3 ? getrandom(bytes, size, 0) : read(urandom, bytes, size);
		const unsigned long index = shared->used++;

		if (got != (ssize_t)size)
			wrong("a request", "random bytes are missing");
		else if (index < UNITS)
			memcpy(&shared->unit[index], bytes, 8);
	}
}

static void *in_thread(void *urandom) {
	compare("pthread_create");
	if (!truth(SYS_geteuid, 0, 0, 0)) {
		/* This thread's ids alone. */
		syscall(SYS_setresgid, 1001, 1002, 1003);
		compare("setresgid of a thread");
		syscall(SYS_setresuid, 1001, 1002, 0);
		compare("setresuid of a thread");
	}
	request(*(int *)urandom);
	return NULL;
}

static void in_threads(int urandom) {
	pthread_t threads[THREADS];

	for (int i = 0; i < THREADS; i++)
		if (pthread_create(&threads[i], NULL, in_thread, &urandom))
			wrong("pthread_create", "it failed");
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	compare("pthread_join");
}

/* Waits for a child. What it has found wrong is in the shared memory. */
static void wait_for(pid_t child) {
	int status;

	while (waitpid(child, &status, 0) < 0 && errno == EINTR)
		;
	if (status)
		wrong("a child's end", "it failed");
}

static int order(const void *a, const void *b) {
	const uint64_t first = *(const uint64_t *)a, second = *(const uint64_t *)b;

	return (first > second) - (first < second);
}

static void change_ids(void) {
	if (geteuid())
		return;
#define CHANGE(call)                                                                                                   \
	if (call)                                                                                                      \
		wrong(#call, strerror(errno));                                                                         \
	compare(#call)
	CHANGE(setresgid(1001, 1002, 0));
	CHANGE(setregid(1003, 0));
	CHANGE(setgid(1004));
	CHANGE(setresuid(1001, 1002, 0));
	CHANGE(seteuid(0));
	CHANGE(setreuid(1003, 0));
	CHANGE(setuid(1005));
}

/* A grandchild compares when its parent has ended. */
static void make_an_orphan(void) {
	int ends[2];
	pid_t child;
	char byte;

	if (pipe(ends))
		wrong("pipe", strerror(errno));
	child = fork();
	if (!child) {
		const long parent = getpid();

		if (fork())
			_exit(0);
		compare("a second fork");
		while (truth(SYS_getppid, 0, 0, 0) == parent)
			sched_yield();
		compare("the parent's end");
		_exit(0);
	}
	wait_for(child);
	/* Only the grandchild has it open now. */
	close(ends[1]);
	while (read(ends[0], &byte, 1) < 0 && errno == EINTR)
		;
	close(ends[0]);
}

static void change_descriptors_and_memory(void) {
	unsigned char bytes[16], none[16] = {0};
	void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	const int zero = open("/dev/zero", O_RDONLY | O_CLOEXEC);
	const int other = open("/dev/urandom", O_RDONLY | O_CLOEXEC);

	if (read(other, bytes, 16) != 16 || dup2(zero, other) != other || read(other, bytes, 16) != 16 ||
	    memcmp(bytes, none, 16))
		wrong("dup2", "the descriptor is read as the one before it");
	close(other);
	if (read(other, bytes, 16) >= 0 || errno != EBADF)
		wrong("close", "the descriptor is read");
	if (getrandom(page, 16, 0) != 16)
		wrong("mmap", "no random bytes");
	munmap(page, 4096);
	if (getrandom(page, 16, 0) >= 0 || errno != EFAULT)
		wrong("munmap", "random bytes were written");
	close(zero);
}

static double now_ns(void) {
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static void by_libc(int call, int urandom, struct timespec *time) {
	unsigned char bytes[16];

	if (call == 0)
		clock_gettime(CLOCK_MONOTONIC, time);
	else if (call == 1)
		getpid();
	else if (call == 2 && getrandom(bytes, 16, 0) != 16)
		wrong("getrandom", "no random bytes");
	else if (call == 3 && read(urandom, bytes, 1) != 1)
		wrong("read", "no random bytes");
}

/* The least of some rounds: on a busy machine, too, one of them is not interrupted. */
static void print_costs(int urandom) {
	static const char *const names[] = {"clock_gettime", "getpid", "getrandom, 16 bytes",
					    "read of urandom, 1 byte"};
	enum { CALLS = 4, ROUNDS = 50, BATCH = 20 };
	struct timespec time;
	unsigned char bytes[16];
	const long arguments[CALLS][4] = {{SYS_clock_gettime, CLOCK_MONOTONIC, (long)&time, 0},
					  {SYS_getpid, 0, 0, 0},
					  {SYS_getrandom, (long)bytes, 16, 0},
					  {SYS_read, urandom, (long)bytes, 1}};

	for (int call = 0; call < CALLS; call++) {
		const long *const with = arguments[call];
		double libc_ns = 1e9, trap_ns = 1e9;

		for (int round = 0; round < ROUNDS; round++) {
			const double begun = now_ns();
			double between, ended;

			for (int i = 0; i < BATCH; i++)
				by_libc(call, urandom, &time);
			between = now_ns();
			for (int i = 0; i < BATCH; i++)
				truth(with[0], with[1], with[2], with[3]);
			ended = now_ns();
			libc_ns = between - begun < libc_ns ? between - begun : libc_ns;
			trap_ns = ended - between < trap_ns ? ended - between : trap_ns;
		}
		printf("%-24s %7.1f ns by libc, %9.1f ns by the instruction\n", names[call], libc_ns / BATCH,
		       trap_ns / BATCH);
		/* musl makes the last two by code that is made for cancellation, which a host may leave as it is. */
		if (entry && (call < 2 || IS_GLIBC) && trap_ns < 20 * libc_ns)
			cost_too_much = 1;
	}
}

int main(int argc, char **argv) {
	const int urandom = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
	unsigned long used;
	pid_t child;

	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	truth = trapping_call();
	entry = (unsigned long)own_vdso_function("__fastpath_syscall");
	if (shared == MAP_FAILED || !truth || urandom < 0) {
		fprintf(stderr, "changes: it cannot run here: %s\n", strerror(errno));
		return 2;
	}
	compare(argc > 1 ? "exec" : "the start");
	if (argc > 1)
		return shared->wrong != 0;
	print_costs(urandom);
	request(urandom);
	change_descriptors_and_memory();
	if (!(child = fork())) {
		compare("fork");
		request(urandom);
		setpgid(0, 0);
		compare("setpgid");
		in_threads(urandom);
		_exit(0);
	}
	request(urandom);
	wait_for(child);
	if (!(child = fork())) {
		setsid();
		compare("setsid");
		change_ids();
		_exit(0);
	}
	setpgid(child, child);
	wait_for(child);
	make_an_orphan();
	if (!(child = vfork())) {
		execv(argv[0], (char *[]){argv[0], "again", NULL});
		_exit(4);
	}
	wait_for(child);
	compare("vfork");
	in_threads(urandom);

	used = shared->used < UNITS ? shared->used : UNITS;
	qsort(shared->unit, used, sizeof(shared->unit[0]), order);
	for (unsigned long i = 1; i < used; i++)
		if (shared->unit[i] == shared->unit[i - 1])
			wrong("a request", "bytes were handed out twice");
	printf("%lu wrong; %lu requests of random bytes\n", shared->wrong, used);
	return shared->wrong ? 1 : cost_too_much ? 3 : 0;
}
