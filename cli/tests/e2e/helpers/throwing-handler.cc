/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * throwing-handler: exceptions that a handler of timers throws while the program reads clocks. Prints
 * `CAUGHT of COUNT caught`. A handler that has not interrupted gettimeofday, in whose place fastpath's code for reads
 * is, or that finds code of no object above, throws nothing, and waits for the next timer.
 */
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <dlfcn.h>
#include <sys/time.h>
#include <ucontext.h>

struct Timeout {};

struct mappings {
	uintptr_t starts[32], ends[32];
	int count;
};

static mappings regions;

static bool are_in(const mappings &mappings, greg_t address) {
	const uintptr_t at = static_cast<uintptr_t>(address);
	for (int i = 0; i < mappings.count; i++)
		if (at - mappings.starts[i] < mappings.ends[i] - mappings.starts[i])
			return true;
	return false;
}

static void set_timer(long us) {
	itimerval timer = {{0, 0}, {0, us}};
	setitimer(ITIMER_REAL, &timer, nullptr);
}

static void time_out(int, siginfo_t *, void *context) {
	const greg_t *registers = static_cast<ucontext_t *>(context)->uc_mcontext.gregs;
	const greg_t *stack = reinterpret_cast<greg_t *>(registers[REG_RSP]);
	Dl_info function;
	bool may_throw = dladdr(reinterpret_cast<void *>(registers[REG_RIP]), &function) && function.dli_sname &&
			 strstr(function.dli_sname, "gettimeofday");
	for (int i = 0; i < 16; i++)
		may_throw &= !are_in(regions, stack[i]);
	if (!may_throw) {
		set_timer(100);
		return;
	}
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGALRM);
	sigprocmask(SIG_UNBLOCK, &set, nullptr);
	throw Timeout();
}

/* Not declared to throw nothing: the call may be unwound through. */
static int (*volatile read_clock)(clockid_t,
				  timespec *) = reinterpret_cast<int (*)(clockid_t, timespec *)>(clock_gettime);

static bool is_interrupted(int us) {
	try {
		set_timer(us);
		for (timespec time;;)
			read_clock(CLOCK_MONOTONIC, &time);
	} catch (const Timeout &) {
		return true;
	}
}

/* What ran before main may have left addresses on the stack. */
__attribute__((noinline)) static void clear_stack() {
	volatile char below[16384];
	for (volatile char &byte : below)
		byte = 0;
}

int main() {
	enum { COUNT = 200 };
	struct sigaction action = {};
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[512];
	int caught = 0;

	while (maps && fgets(line, sizeof line, maps) && regions.count < 32)
		if (strstr(line, "fastpath-region") &&
		    sscanf(line, "%lx-%lx", &regions.starts[regions.count], &regions.ends[regions.count]) == 2)
			regions.count++;
	clear_stack();
	action.sa_sigaction = time_out;
	action.sa_flags = SA_SIGINFO;
	sigaction(SIGALRM, &action, nullptr);
	for (int i = 0; i < COUNT; i++)
		caught += is_interrupted(500 + i * 13);
	printf("%d of %d caught\n", caught, COUNT);
	return regions.count ? 0 : 1;
}
