/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * enter-namespace FILE: prints `ready`; once the file exists, forks a child into another time namespace, which compares
 * its MONOTONIC with the kernel's there, and prints `right` or `wrong`.
 */
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

int main(int argc, char **argv) {
	static const char offset[] = "monotonic 50000 0\n";
	struct timespec ours, kernels;
	int status = 1, fd;

	clock_gettime(CLOCK_MONOTONIC, &ours);
	puts("ready");
	fflush(stdout);
	while (argc < 2 || access(argv[1], F_OK)) {
		usleep(10000);
	}
	if (unshare(0x80) /* CLONE_NEWTIME */ || (fd = open("/proc/self/timens_offsets", O_WRONLY)) < 0 ||
	    write(fd, offset, sizeof(offset) - 1) < 0) {
		perror("enter-namespace");
		return 2;
	}
	if (fork()) {
		wait(&status);
		return WEXITSTATUS(status);
	}
	clock_gettime(CLOCK_MONOTONIC, &ours);
	syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &kernels);
	puts(kernels.tv_sec - ours.tv_sec < 100 && ours.tv_sec - kernels.tv_sec < 100 ? "right" : "wrong");
	return 0;
}
