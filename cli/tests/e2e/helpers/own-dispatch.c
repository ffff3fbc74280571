/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* own-dispatch: dispatches its system calls itself, except those of its C library (prctl(2),
 * PR_SET_SYSCALL_USER_DISPATCH), as Wine does; then makes some through the C library, and prints how many were
 * dispatched nevertheless. */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef PR_SET_SYSCALL_USER_DISPATCH
#define PR_SET_SYSCALL_USER_DISPATCH 59
#endif

enum { ALLOW, BLOCK };

static volatile char selector = ALLOW;
static volatile sig_atomic_t dispatched;

static void handle(int signal) {
	(void)signal;
	dispatched++;
}

int main(void) {
	struct sigaction action = {.sa_handler = handle};
	unsigned long start = 0, end = 0;
	char line[512], name[16];
	FILE *maps = fopen("/proc/self/maps", "r");

	while (maps && fgets(line, sizeof line, maps))
		if (strstr(line, "r-xp") && strstr(line, "libc.so"))
			sscanf(line, "%lx-%lx", &start, &end);
	sigaction(SIGSYS, &action, NULL);
	if (!start || prctl(PR_SET_SYSCALL_USER_DISPATCH, 1 /* on */, start, end - start, &selector)) {
		puts("not on this system");
		return 125;
	}
	selector = BLOCK;
	prctl(PR_GET_NAME, name);
	syscall(SYS_getpid);
	syscall(SYS_gettid);
	execl("/nonexistent", "nonexistent", (char *)0);
	selector = ALLOW;
	printf("%d\n", (int)dispatched);
	return 0;
}
