/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* second-libc first|second PROGRAM [ARGUMENT...]: loads the C library again, prints `ready`, waits for SIGUSR1, and
 * executes the program by that copy of the library. */
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
	void *library = dlmopen(LM_ID_NEWLM, "libc.so.6", RTLD_NOW);
	int (*execute)(const char *, char *const *) = library ? dlsym(library, "execvp") : NULL;
	sigset_t go;
	int signal;

	sigemptyset(&go);
	sigaddset(&go, SIGUSR1);
	sigprocmask(SIG_BLOCK, &go, NULL);
	puts(execute ? "ready" : "there is no second library");
	fflush(stdout);
	if (argc < 3 || !execute || sigwait(&go, &signal))
		return 1;
	if (!strcmp(argv[1], "first"))
		execute = execvp;
	execute(argv[2], argv + 2);
	return 127;
}
