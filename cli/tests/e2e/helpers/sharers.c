/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * sharers [HOW...]: makes a process with which it shares its memory (clone(2)), prints that process's PID, and waits.
 * HOW:
 *
 *   files    they share file descriptors instead
 *   sibling  the other one has the same parent (CLONE_PARENT)
 *   orphan   a process between the two has ended
 *   far      its PID is not near
 *   user     it has another user
 *   pid      it is in another PID namespace
 *   later    it is made at a SIGUSR1; prints `ready` before
 *   attach   it is made by a thread when fastpath maps its region; prints `ready` before
 */
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STACK = 65536, FAR = 200, WATCHERS = 3 };

static char **ways;

static int is_set(const char *way) {
	for (char **each = ways; *each; each++) {
		if (strcmp(*each, way) == 0) {
			return 1;
		}
	}
	return 0;
}

static void must(long result, const char *what) {
	if (result < 0) {
		perror(what);
		_exit(77);
	}
}

static int stay(void *unused) {
	if (!unused && is_set("user")) {
		/* The system call: the library would ask all threads. */
		must(syscall(SYS_setresuid, 65534, 65534, 65534), "setresuid");
	}
	while (pause() < 0) {
	}
	return 0;
}

static pid_t share(int (*what)(void *)) {
	int flags = SIGCHLD | (is_set("sibling") ? CLONE_PARENT : 0);
	pid_t made;

	if (is_set("files")) {
		made = (pid_t)syscall(SYS_clone, flags | CLONE_FILES, 0, 0, 0, 0);
		if (made == 0) {
			_exit(what(NULL));
		}
	} else {
		made = clone(what, (char *)aligned_alloc(16, STACK) + STACK, flags | CLONE_VM, NULL);
	}
	must(made, "clone");
	return made;
}

static int share_and_print(void *unused) {
	for (int i = 0; is_set("far") && i < FAR; i++) {
		pid_t child = fork();

		if (child == 0) {
			_exit(0);
		}
		waitpid(child, NULL, 0);
	}
	if (is_set("pid")) {
		must(unshare(CLONE_NEWPID), "unshare");
	}
	dprintf(1, "%d\n", share(stay));
	return unused != NULL;
}

static int maps_region(void) {
	char maps[1 << 15];
	int file = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
	size_t length = 0;
	ssize_t more;

	while ((more = read(file, maps + length, sizeof(maps) - 1 - length)) > 0) {
		length += (size_t)more;
	}
	close(file);
	maps[length] = 0;
	return strstr(maps, "fastpath-region") != NULL;
}

static void *watch(void *unused) {
	static atomic_flag is_made = ATOMIC_FLAG_INIT;

	while (!maps_region()) {
	}
	if (!atomic_flag_test_and_set(&is_made)) {
		share_and_print(NULL);
	}
	return unused;
}

int main(int argc, char **argv) {
	pthread_t thread;
	sigset_t user;
	int signal;

	ways = argv + (argc > 0);
	sigemptyset(&user);
	sigaddset(&user, SIGUSR1);
	sigprocmask(SIG_BLOCK, &user, NULL);
	if (is_set("attach")) {
		for (int i = 0; i < WATCHERS; i++) {
			pthread_create(&thread, NULL, watch, NULL);
		}
		dprintf(1, "ready\n");
	} else if (is_set("later")) {
		dprintf(1, "ready\n");
		sigwait(&user, &signal);
		share_and_print(NULL);
	} else if (is_set("orphan")) {
		waitpid(share(share_and_print), NULL, 0);
	} else {
		share_and_print(NULL);
	}
	while (pause() < 0) {
	}
	return 0;
}
