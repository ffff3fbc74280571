/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* ring: has a kernel thread among its own, which polls an io_uring for it. */
#include <linux/io_uring.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(void) {
	struct io_uring_params parameters = {.flags = IORING_SETUP_SQPOLL, .sq_thread_idle = 10};

	if (syscall(SYS_io_uring_setup, 4, &parameters) < 0) {
		perror("io_uring");
		return 125;
	}
	puts("ready");
	fflush(stdout);
	for (;;) {
		pause();
	}
}
