/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * identities THREADS: asks for the ids of the process many times in each of its threads. Exits with 1 after a wrong
 * answer.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { CALLS = 100000, MOST_THREADS = 64 };

static pid_t process;
static uid_t user;

static void *ask(void *nothing) {
	for (int i = 0; i < CALLS; i++)
		if (getpid() != process || getuid() != user) {
			fputs("identities: a wrong answer\n", stderr);
			exit(1);
		}
	return nothing;
}

int main(int argc, char **argv) {
	pthread_t threads[MOST_THREADS];
	const int count = argc > 1 ? atoi(argv[1]) : 1;

	process = getpid();
	user = getuid();
	if (count < 1 || count > MOST_THREADS)
		return 2;
	/* All but the first thread exist before any of them asks again. */
	for (int i = 1; i < count; i++)
		if (pthread_create(&threads[i], NULL, ask, NULL))
			return 2;
	ask(NULL);
	for (int i = 1; i < count; i++)
		pthread_join(threads[i], NULL);
	return 0;
}
