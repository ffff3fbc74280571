/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* shared-files: two processes that share their file descriptors, but not their memory (clone(2), CLONE_FILES). The
 * parent prints the child's PID. */
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(void) {
	long child = syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0);

	if (child) {
		printf("%ld\n", child);
		fflush(stdout);
	} else {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	}
	for (;;)
		pause();
}
