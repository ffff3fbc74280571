/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* own-files FILE: opens FILE several times; a thread that runs all the time has file descriptors of its own, and fewer
 * (unshare(2), CLONE_FILES). */
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void *run(void *unused) {
	if (unshare(CLONE_FILES))
		exit(125);
	for (int i = 3; i < 64; i++)
		close(i);
	write(1, "ready\n", 6);
	for (;;)
		__asm__ volatile("" : : "r"(unused));
}

int main(int argc, char **argv) {
	pthread_t thread;

	for (int i = 0; argc > 1 && i < 16; i++)
		if (open(argv[1], O_RDWR) < 0)
			return 125;
	pthread_create(&thread, NULL, run, NULL);
	for (;;)
		pause();
}
