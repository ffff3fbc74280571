/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* without-leader: its first thread ends, with "late" at SIGUSR1, and other threads continue: /proc then shows a zombie
 * that has threads. */
#include "judge.h"

static pthread_t leader, judges[2];

static void *go_on(void *late) {
	sigset_t usr1;

	if (late) {
		sigemptyset(&usr1);
		sigaddset(&usr1, SIGUSR1);
		say("waiting");
		until_the_end(&usr1);
	}
	return NULL;
}

static void *lead(void *unused) {
	(void)unused;
	pthread_join(leader, NULL);
	say("ready");
	until_the_end(NULL);
	for (int i = 0; i < 2; i++) {
		pthread_join(judges[i], NULL);
	}
	exit(verdict());
}

int main(int argc, char **argv) {
	sigset_t usr1;

	(void)argv;
	begin();
	sigemptyset(&usr1);
	sigaddset(&usr1, SIGUSR1);
	pthread_sigmask(SIG_BLOCK, &usr1, NULL);
	leader = pthread_self();
	for (int i = 0; i < 2; i++) {
		judges[i] = start_thread(judge_clocks_always, NULL, NULL);
	}
	start_thread(lead, NULL, NULL);
	go_on(argc >= 2 ? &leader : NULL);
	pthread_exit(NULL);
}
