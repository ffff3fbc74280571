/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * reads-and-execs: reads the clock, fails to execute a file, and starts itself as a child, again and again. Prints
 * `ready`, the address of libc's execve, and that of its `syscall`. At each SIGUSR1 prints `N rounds, M served, F
 * failures` for the time since the last one, where M children were served.
 */
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SERVED = 42, LONGEST = 32 };
static volatile sig_atomic_t is_wanted;

static void on_signal(int number) {
	(void)number;
	is_wanted = 1;
}

static int is_served(void) {
	char line[512];
	FILE *maps = fopen("/proc/self/maps", "r");

	while (maps && fgets(line, sizeof(line), maps))
		if (strstr(line, "fastpath-page"))
			return 1;
	return 0;
}

/* Returns the exit status of a child; -1: it could not be started. */
static int child(char *self) {
	char *arguments[] = {self, "child", NULL}, *environment[] = {NULL};
	int status;
	const pid_t pid = fork();

	if (pid == 0) {
		execve(self, arguments, environment);
		_exit(1);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		return -1;
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int main(int argc, char **argv) {
	const unsigned char *code = (const unsigned char *)(uintptr_t)execve, *call = code;
	char *none[] = {NULL};
	struct timespec last = {0, 0}, now;
	long rounds = 0, served = 0, failures = 0;

	if (argc > 1)
		return is_served() ? SERVED : 0;
	signal(SIGUSR1, on_signal);
	while (call < code + LONGEST && (call[0] != 0x0f || call[1] != 0x05))
		call++;
	printf("ready %p %p\n", (const void *)code, (const void *)call);
	fflush(stdout);
	for (;;) {
		int status;

		clock_gettime(CLOCK_MONOTONIC, &now);
		failures += now.tv_sec < last.tv_sec || (now.tv_sec == last.tv_sec && now.tv_nsec < last.tv_nsec);
		last = now;
		failures += execve("/nonexistent/file", none, none) != -1 || errno != ENOENT;
		status = child(argv[0]);
		served += status == SERVED;
		failures += status != SERVED && status != 0;
		rounds++;
		if (is_wanted) {
			is_wanted = 0;
			printf("%ld rounds, %ld served, %ld failures\n", rounds, served, failures);
			fflush(stdout);
			rounds = served = failures = 0;
		}
	}
}
