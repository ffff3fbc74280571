/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* One thread that only reads the clocks. */
#include "judge.h"

static void *judge_clocks_only(void *unused) {
	while (!is_over) {
		judge_clocks();
	}
	return unused;
}

int main(void) {
	pthread_t thread;

	begin();
	thread = start_thread(judge_clocks_only, NULL, NULL);
	say("ready");
	until_the_end(NULL);
	pthread_join(thread, NULL);
	return verdict();
}
