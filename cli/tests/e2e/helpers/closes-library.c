// With -DLIBRARY: a library that makes system calls for time; with -DOTHER: one with other code in the same place. Else
// a program that opens the first (its first argument), closes it at SIGUSR1, and opens the second, if it is named.
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#ifdef LIBRARY
void ask_the_time(void) {
	struct timespec ts;
	long result;
#ifdef OTHER
	__asm__ volatile(".fill 7, 1, 0x90");
#endif
	for (int i = 0; i < 3; i++)
		__asm__ volatile("mov $228, %%eax\n\tmov $1, %%edi\n\tmov %1, %%rsi\n\tsyscall"
				 : "=a"(result)
				 : "r"(&ts)
				 : "rdi", "rsi", "rcx", "r11", "memory");
}
#else
static void say(const char *word) {
	puts(word);
	fflush(stdout);
}

int main(int argc, char **argv) {
	sigset_t set;
	int signal;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigprocmask(SIG_BLOCK, &set, NULL);
	void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
	if (!library)
		return 1;
	say("ready");
	sigwait(&set, &signal);
	dlclose(library);
	if (argc > 2 && !dlopen(argv[2], RTLD_NOW))
		return 2;
	say("closed");
	pause();
}
#endif
