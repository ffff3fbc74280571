/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* unstoppable SECONDS: its first thread waits for a child for SECONDS, uninterruptibly, as the parent of a vfork does,
 * and another one waits for a signal. */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static void *wait(void *unused) {
	puts("ready");
	fflush(stdout);
	pause();
	return unused;
}

int main(int argc, char **argv) {
	pthread_t thread;

	if (argc != 2 || pthread_create(&thread, NULL, wait, NULL))
		return 2;
	/* A child with its own memory. */
	if (syscall(SYS_clone, CLONE_VFORK | SIGCHLD, 0, 0, 0, 0) == 0) {
		sleep(atoi(argv[1]));
		_exit(0);
	}
	pause();
	return 0;
}
