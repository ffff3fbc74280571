/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* A thread for each function of the kernel's vDSO, which calls it again and again with all kinds of arguments, and
 * compares what it returns and writes with the system call's. Signals interrupt the threads, and their handler does the
 * same with every function. */
#include "judge.h"

#include <dlfcn.h>
#include <limits.h>
#include <sched.h>
#include <stdint.h>
#include <sys/mman.h>
#include <ucontext.h>

/* For higher clocks, Linux 6.18's clock_getres and its system call differ. */
enum { ARGUMENTS = 3, WORDS = 4, LEAST_CLOCK = -10, MOST_CLOCK = 15, RANDOM_BYTES = 16 };

/* An argument that stands for a pointer to the second of the words that belong to it. */
#define OUT LONG_MIN

typedef long call(long, long, long, long, long);

/* All bits that a call may change. */
struct outcome {
	long result, words[ARGUMENTS][WORDS];
};

struct function {
	const char *name;
	int number;
	/* Of the second number of a time that it writes; 0: it writes none. */
	long unit_ns;
	void (*compare)(const struct function *);
	call *call;
	struct work *compared;
};

/* Parameters of a state for getrandom (include/uapi/linux/random.h, Linux 6.11). */
struct random_params {
	uint32_t size, protection, flags, reserved[13];
};

static struct work *signals_in_vdso;
static struct random_params random_params;
static _Thread_local void *random_state;

static struct outcome ask(const struct function *function, int by_system_call, const long *arguments) {
	struct outcome outcome;
	long a[ARGUMENTS];

	memset(&outcome, 0x5a, sizeof(outcome));
	for (int i = 0; i < ARGUMENTS; i++) {
		a[i] = arguments[i] == OUT ? (long)&outcome.words[i][1] : arguments[i];
	}
	if (!by_system_call) {
		outcome.result = (int)function->call(a[0], a[1], a[2], 0, 0);
	} else if (function->number == SYS_time) {
		/* time's own system call does not wait for an update of the kernel's time: it is late then. */
		struct timespec time;

		syscall(SYS_clock_gettime, CLOCK_REALTIME_COARSE, &time);
		outcome.result = (int)time.tv_sec;
		if (a[0]) {
			*(long *)a[0] = time.tv_sec;
		}
	} else {
		long result = syscall(function->number, a[0], a[1], a[2]);

		outcome.result = (int)(result < 0 ? -errno : result);
	}
	return outcome;
}

/* Takes the time out of an outcome. */
static long long time_in(const struct function *function, struct outcome *outcome, int argument) {
	long *time = &outcome->words[argument][1];
	long long ns = time[0] * 1000000000LL + time[1] * function->unit_ns;

	time[0] = time[1] = 0;
	return ns;
}

/* Compares one call with the kernel's before and after it: every bit, but a time may lie between theirs. */
static void compare_call(const struct function *function, long a, long b) {
	const long arguments[ARGUMENTS] = {a, b, 0};
	const int time_at = a != OUT;
	struct outcome before, ours, after;

	do {
		before = ask(function, 1, arguments);
		ours = ask(function, 0, arguments);
		after = ask(function, 1, arguments);
	} while (!function->unit_ns && memcmp(&before, &after, sizeof(before)));
	if (memcmp(&before, &after, sizeof(before))) {
		long long before_ns = time_in(function, &before, time_at), ns = time_in(function, &ours, time_at);

		expect(before_ns <= ns && ns <= time_in(function, &after, time_at), function->name, a);
	}
	expect(!memcmp(&before, &ours, sizeof(before)), function->name, a);
}

static void compare_clocks(const struct function *function) {
	for (int id = LEAST_CLOCK; id <= MOST_CLOCK; id++) {
		compare_call(function, id, OUT);
	}
}

static void compare_resolutions(const struct function *function) {
	compare_clocks(function);
	compare_call(function, CLOCK_MONOTONIC, 0);
	compare_call(function, MOST_CLOCK, 0);
}

/* With two pointers. */
static void compare_pair(const struct function *function) {
	compare_call(function, OUT, OUT);
	compare_call(function, OUT, 0);
	compare_call(function, 0, OUT);
	compare_call(function, 0, 0);
}

static void compare_time(const struct function *function) {
	compare_call(function, OUT, 0);
	compare_call(function, 0, 0);
}

/* What it writes is random, so only how much it writes is compared. */
static void compare_random(const struct function *function) {
	struct random_params params;
	long words[4], state = (long)random_state;
	const long size = random_params.size;

	expect(function->call(0, 0, 0, (long)&params, -1) == 0, "getrandom's parameters", 0);
	expect(!memcmp(&params, &random_params, sizeof(params)), "getrandom's parameters", 1);
	memset(words, 0x5a, sizeof(words));
	const long *end = words + RANDOM_BYTES / sizeof(long), untouched = *end;
	expect(function->call((long)words, 0, 0, state, size) == 0 && *words == untouched, "no random bytes", 0);
	expect(function->call((long)words, 8, -1, state, size) == -EINVAL && *words == untouched, "odd flags", 0);
	expect(function->call((long)words, RANDOM_BYTES, 0, state, size) == RANDOM_BYTES, "random bytes", 0);
	expect(*words != untouched && *end == untouched, "random bytes", 1);
}

static struct function functions[] = {
    {"__vdso_clock_gettime", SYS_clock_gettime, 1, compare_clocks, NULL, NULL},
    {"__vdso_gettimeofday", SYS_gettimeofday, 1000, compare_pair, NULL, NULL},
    {"__vdso_time", SYS_time, 0, compare_time, NULL, NULL},
    {"__vdso_clock_getres", SYS_clock_getres, 0, compare_resolutions, NULL, NULL},
    {"__vdso_getcpu", SYS_getcpu, 0, compare_pair, NULL, NULL},
    {"__vdso_getrandom", SYS_getrandom, 0, compare_random, NULL, NULL},
};
enum { FUNCTIONS = sizeof(functions) / sizeof(functions[0]) };

static void handle(int signal, siginfo_t *info, void *context) {
	void *pc = (void *)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
	int error = errno;
	Dl_info object;

	(void)signal;
	(void)info;
	signals_in_vdso->times += dladdr(pc, &object) && strstr(object.dli_fname, "vdso");
	for (int i = 0; i < FUNCTIONS; i++) {
		if (functions[i].call) {
			functions[i].compare(&functions[i]);
		}
	}
	errno = error;
}

/* A thread that stays on one CPU, so that its number is the same before and after a call. */
static void *compare_always(void *argument) {
	struct function *function = argument;
	cpu_set_t set;
	sigset_t signals;

	CPU_ZERO(&set);
	CPU_SET(sched_getcpu(), &set);
	expect(sched_setaffinity(0, sizeof(set), &set) == 0, "sched_setaffinity, errno", errno);
	if (random_params.size) {
		random_state =
		    mmap(NULL, random_params.size, (int)random_params.protection, (int)random_params.flags, -1, 0);
		expect(random_state != MAP_FAILED, "mmap, errno", errno);
	}
	sigemptyset(&signals);
	sigaddset(&signals, SIGUSR2);
	pthread_sigmask(SIG_UNBLOCK, &signals, NULL);
	while (!is_over) {
		function->compare(function);
		function->compared->times++;
	}
	return NULL;
}

int main(void) {
	struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_RESTART | SA_SIGINFO};
	const struct timespec wait = {0, NS_PER_MS};
	pthread_t threads[FUNCTIONS];
	void *vdso = dlopen("linux-vdso.so.1", RTLD_LAZY | RTLD_NOLOAD);
	sigset_t set;

	begin();
	clock_reads->times++;
	signals_in_vdso = kind_of_work("signals in the vDSO");
	sigaction(SIGUSR2, &action, NULL);
	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	for (int i = 0; i < FUNCTIONS; i++) {
		functions[i].call = vdso ? (call *)(uintptr_t)dlsym(vdso, functions[i].name) : NULL;
		functions[i].compared = functions[i].call ? kind_of_work(functions[i].name) : NULL;
	}
	call *getrandom = functions[FUNCTIONS - 1].call;
	if (getrandom) {
		expect(getrandom(0, 0, 0, (long)&random_params, -1) == 0, "getrandom's parameters", 0);
	}
	for (int i = 0; i < FUNCTIONS; i++) {
		if (functions[i].call) {
			threads[i] = start_thread(compare_always, &functions[i], NULL);
		}
	}
	say("ready");
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	while (sigtimedwait(&set, NULL, &wait) != SIGTERM) {
		for (int i = 0; i < FUNCTIONS; i++) {
			if (functions[i].call) {
				pthread_kill(threads[i], SIGUSR2);
			}
		}
	}
	is_over = 1;
	for (int i = 0; i < FUNCTIONS; i++) {
		if (functions[i].call) {
			pthread_join(threads[i], NULL);
		}
	}
	return verdict();
}
