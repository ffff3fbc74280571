/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* thread-filter: one thread runs under a seccomp filter that kills for every call; the others have no filter, and wait.
 * */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>

static atomic_int is_filtered;

static void *run_filtered(void *unused) {
	struct sock_filter code = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
	struct sock_fprog program = {.len = 1, .filter = &code};

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
		perror("thread-filter");
		_exit(125);
	}
	for (;;) {
		is_filtered = 1;
	}
	return unused;
}

int main(void) {
	pthread_t thread;

	if (pthread_create(&thread, NULL, run_filtered, NULL)) {
		return 2;
	}
	while (!is_filtered) {
	}
	puts("filtered");
	fflush(stdout);
	pause();
}
