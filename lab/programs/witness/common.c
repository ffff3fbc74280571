/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "witness.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const int clock_ids[CLOCKS] = {ID_MONOTONIC, ID_MONOTONIC_RAW, ID_BOOTTIME, ID_REALTIME, ID_TAI};
int judges_kernel;
atomic_int stop;

long long read_kernel_ns(int clock) { return read_syscall_ns(clock_ids[clock]); }

long long read_ours_ns(int clock) { return judges_kernel ? read_kernel_ns(clock) : read_libc_ns(clock_ids[clock]); }

void fail(const char *what) {
	fputs("witness: ", stderr);
	perror(what);
	exit(2);
}

void write_word(const char *path, const char *word) {
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	if (fd < 0 || write(fd, word, strlen(word)) < 0) {
		fail(path);
	}
	close(fd);
}
