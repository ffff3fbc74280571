/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Short-lived children by fork and vfork, programs by exec, and threads. All of them read clocks. */
#include "attached.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>

/* Exit statuses of children. */
enum { FINE = 0, CONTRADICTION = 3, NO_EXEC = 4 };
enum { LOOKS = 20, LASTING_MS = 400, STACK_BYTES = 256 * 1024 };

/* A child's last read, for its parent, in shared memory. */
static _Atomic long long *last_ns_of_child;
/* One for each thread that creates threads, because mappings that glibc made and removed would be counted. */
static _Alignas(64) char stacks[MAX_THREADS][STACK_BYTES];

void prepare_churn(void) {
	last_ns_of_child = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (last_ns_of_child == MAP_FAILED) {
		fail("mmap");
	}
}

static int look_many_times(int lasting_ms) {
	struct findings findings = {0};
	long long end_ns = read_syscall_ns(ID_MONOTONIC) + lasting_ms * 1000000LL;

	for (int i = 0; i < LOOKS || read_syscall_ns(ID_MONOTONIC) < end_ns; i++) {
		look_once(&findings);
		if (lasting_ms) {
			sleep_ns(2000000);
		}
	}
	return findings.violations ? CONTRADICTION : FINE;
}

static void await_child(struct thread *thread, pid_t child, const char *what) {
	int status, from = thread->signals;
	pid_t ended;

	if (child < 0) {
		odd(thread, ODD_RESULT, what, errno);
		return;
	}
	while ((ended = waitpid(child, &status, 0)) < 0 && errno == EINTR) {
		if (thread->signals == from) {
			odd(thread, UNEXPLAINED_EINTR, "waitpid", child);
		}
		from = thread->signals;
	}
	if (ended != child) {
		odd(thread, ODD_RESULT, "waitpid", errno);
	} else if (status != 0) {
		odd(thread, CHILD_FAILED, what, status);
	}
}

static void fork_one(struct thread *thread, int lasting_ms, const char *what) {
	long long before_ns = read_libc_ns(ID_MONOTONIC);
	pid_t child = fork();

	if (child == 0) {
		long long first_ns = read_libc_ns(ID_MONOTONIC);
		int result = look_many_times(lasting_ms);

		atomic_store(&last_ns_of_child[thread->number], read_libc_ns(ID_MONOTONIC));
		_exit(first_ns < before_ns ? CONTRADICTION : result);
	}
	await_child(thread, child, what);
	thread->order.reads++;
	if (child > 0 && read_libc_ns(ID_MONOTONIC) < atomic_load(&last_ns_of_child[thread->number])) {
		violation(&thread->order, ID_MONOTONIC, 1);
	}
	sleep_ns(10000000 + random_below(thread, 10000000));
}

void fork_reader(struct thread *thread) { fork_one(thread, 0, "a forked child"); }

/* Forks a child that lives long enough for its parent to be attached or detached meanwhile. */
void fork_lasting(struct thread *thread) { fork_one(thread, LASTING_MS, "a lasting child"); }

static void be_another_program(void) {
	char *const arguments[] = {"attached", "--child", NULL}, *const none[] = {NULL};

	execve("/proc/self/exe", arguments, none);
	_exit(NO_EXEC);
}

void fork_and_exec(struct thread *thread) {
	pid_t child = fork();

	if (child == 0) {
		be_another_program();
	}
	await_child(thread, child, "a program started by fork");
	sleep_ns(15000000 + random_below(thread, 15000000));
}

/* The child runs in this process's memory until its exec. */
void vfork_and_exec(struct thread *thread) {
	pid_t child = vfork();

	if (child == 0) {
		be_another_program();
	}
	await_child(thread, child, "a program started by vfork");
	sleep_ns(15000000 + random_below(thread, 15000000));
}

int be_child(void) { return look_many_times(0); }

static void *look_in_thread(void *findings) {
	look_once(findings);
	return NULL;
}

void create_thread(struct thread *thread) {
	struct findings findings = {0};
	pthread_attr_t attributes;
	pthread_t created;

	pthread_attr_init(&attributes);
	if (pthread_attr_setstack(&attributes, stacks[thread->number], STACK_BYTES) ||
	    pthread_create(&created, &attributes, look_in_thread, &findings)) {
		odd(thread, ODD_RESULT, "pthread_create", errno);
		return;
	}
	pthread_join(created, NULL);
	pthread_attr_destroy(&attributes);
	add_findings(&thread->order, &findings);
	sleep_ns(1000000 + random_below(thread, 2000000));
}
