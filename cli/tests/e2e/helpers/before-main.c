/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A library for LD_PRELOAD: confines a program as a sandbox does, but only before its main. So the start of the program
 * is not affected (the loader reads the counter), and its vDSO, or the lack of one, stays. BEFORE_MAIN is `counter`
 * (a read of the counter raises SIGSEGV), `refuse` (clock_gettime returns EPERM) or `kill` (it kills); or a path: then
 * it makes that file, and waits until it is gone. `fastpath run` and programs that the program starts are left alone.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static void answer(unsigned int action) {
	struct sock_filter code[] = {
	    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
	    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clock_gettime, 0, 1),
	    BPF_STMT(BPF_RET | BPF_K, action),
	    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {.len = sizeof(code) / sizeof(code[0]), .filter = code};

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
		_Exit(125);
	}
}

/* glibc passes a constructor the arguments of main. */
__attribute__((constructor)) static void before_main(int argc, char **argv) {
	const char *what = getenv("BEFORE_MAIN");

	if (!what || (argc > 1 && strcmp(argv[1], "run") == 0)) {
		return;
	}
	if (strcmp(what, "counter") == 0 && prctl(PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0)) {
		_Exit(125);
	}
	if (strcmp(what, "refuse") == 0) {
		answer(SECCOMP_RET_ERRNO | EPERM);
	}
	if (strcmp(what, "kill") == 0) {
		answer(SECCOMP_RET_KILL_PROCESS);
	}
	if (what[0] == '/') {
		close(creat(what, 0600));
		while (access(what, F_OK) == 0) {
			usleep(1000);
		}
	}
	unsetenv("LD_PRELOAD");
	unsetenv("BEFORE_MAIN");
}
