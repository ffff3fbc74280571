/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* many-threads COUNT: COUNT threads with small stacks. Of ten, one reads the clocks, sleeps, and reads them again;
 * three wait until a time of the clock, and three for a duration, by futex, which must both end on time and not with
 * EINTR; three wait for a byte that comes at the end. */
#include "judge.h"

#include <linux/futex.h>
#include <sys/eventfd.h>

enum { MOST = 4000, STACK = 32 << 10, WAIT_MS = 50 };

static struct work *naps, *moments, *whiles;
static int never;

static void read_clocks(void) {
	for (int i = 0; i < 20; i++) {
		judge_clocks();
	}
	nap_ns(20 * NS_PER_MS);
	naps->times++;
}

static void wait_for_a_moment(void) {
	long long moment = judge_clocks() + WAIT_MS * (long long)NS_PER_MS;
	const struct timespec until = {moment / 1000000000, moment % 1000000000};
	int error = clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);

	expect(error == 0, "clock_nanosleep failed, errno", error);
	expect(read_syscall_ns(ID_MONOTONIC) >= moment, "clock_nanosleep was too short, ms", WAIT_MS);
	moments->times++;
}

static void wait_for_a_while(void) {
	static const struct timespec wait = {0, WAIT_MS * (long)NS_PER_MS};
	long long begun = read_syscall_ns(ID_MONOTONIC);
	int word = 0;
	long answer = syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &wait, NULL, 0);

	expect(answer == -1 && errno == ETIMEDOUT, "futex: errno", errno);
	expect(read_syscall_ns(ID_MONOTONIC) - begun >= wait.tv_nsec, "futex: too short, ms", WAIT_MS);
	whiles->times++;
}

static void *live(void *number) {
	long kind = (long)number % 10;
	eventfd_t value;

	if (kind >= 7) {
		expect(eventfd_read(never, &value) == 0 && value == 1, "a byte did not come, errno", errno);
		expect(is_over, "a byte came too early", value);
		return NULL;
	}
	while (!is_over) {
		(kind == 0 ? read_clocks : kind <= 3 ? wait_for_a_moment : wait_for_a_while)();
	}
	return NULL;
}

int main(int argc, char **argv) {
	static pthread_t threads[MOST];
	pthread_attr_t attributes;
	int count = argc == 2 ? atoi(argv[1]) : 0;

	if (count < 10 || count > MOST) {
		return 2;
	}
	begin();
	naps = kind_of_work("naps");
	moments = kind_of_work("waits for a moment");
	whiles = kind_of_work("waits for a while");
	never = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, STACK);
	for (long i = 0; i < count; i++) {
		threads[i] = start_thread(live, (void *)i, &attributes);
	}
	say("ready");
	until_the_end(NULL);
	eventfd_write(never, count);
	for (int i = 0; i < count; i++) {
		pthread_join(threads[i], NULL);
	}
	return verdict();
}
