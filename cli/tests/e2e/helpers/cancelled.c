/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* cancelled: cancels a thread that waits in read(2); exits with 0 once it has ended. */
#include <pthread.h>
#include <unistd.h>

static int ends[2];

static void *wait_for_input(void *unused) {
	char byte;

	return read(ends[0], &byte, 1) < 0 ? NULL : unused;
}

int main(void) {
	pthread_t thread;
	void *result;

	if (pipe(ends) || pthread_create(&thread, NULL, wait_for_input, NULL)) {
		return 2;
	}
	usleep(200000);
	pthread_cancel(thread);
	pthread_join(thread, &result);
	return result != PTHREAD_CANCELED;
}
