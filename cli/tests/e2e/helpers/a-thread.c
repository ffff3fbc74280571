/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* A library that has a second thread running before main. */
#include <pthread.h>
#include <unistd.h>

static void *sleep_on(void *nothing) {
	pause();
	return nothing;
}

__attribute__((constructor)) static void begin(void) {
	pthread_t thread;

	pthread_create(&thread, NULL, sleep_on, NULL);
}
