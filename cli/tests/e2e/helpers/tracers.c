/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* tracers: two processes, each of which traces the other's first thread from one SIGUSR1 to the next (PTRACE_SEIZE). It
 * prints the PID of the second process, and "ready". Exits with 125 if they may not trace each other. */
#include "judge.h"

#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

static atomic_int is_to_trace;
static pid_t other;
static struct work *stops;

/* While requested, traces the other process and stops it briefly now and then, as debuggers do. */
static void trace(void) {
	int status, goes_on;

	while (ptrace(PTRACE_SEIZE, other, 0, 0)) {
		/* Another tracer traces it. */
		expect(errno == EPERM, "PTRACE_SEIZE: errno", errno);
		nap_ns(NS_PER_MS);
		if (!is_to_trace) {
			return;
		}
	}
	do {
		nap_ns(5 * NS_PER_MS);
		expect(ptrace(PTRACE_INTERRUPT, other, 0, 0) == 0, "PTRACE_INTERRUPT: errno", errno);
		expect(waitpid(other, &status, __WALL) == other && WIFSTOPPED(status), "waitpid: status", status);
		stops->times++;
		/* Read once: it may change meanwhile. */
		goes_on = is_to_trace;
		if (goes_on) {
			expect(ptrace(PTRACE_CONT, other, 0, 0) == 0, "PTRACE_CONT: errno", errno);
		}
	} while (goes_on);
	expect(ptrace(PTRACE_DETACH, other, 0, 0) == 0, "PTRACE_DETACH: errno", errno);
}

/* Tests whether tracing is permitted. The thread's end detaches the other process. */
static void *may_trace(void *unused) {
	(void)unused;
	return ptrace(PTRACE_SEIZE, other, 0, 0) ? strerror(errno) : NULL;
}

static void *trace_on_request(void *unused) {
	while (!is_over) {
		if (is_to_trace) {
			trace();
		}
		nap_ns(NS_PER_MS);
	}
	return unused;
}

/* SIGUSR1 begins and ends the tracing; SIGTERM ends the process. */
static int live(void) {
	pthread_t threads[2];
	sigset_t usr1;

	stops = kind_of_work("stops of the other one");
	sigemptyset(&usr1);
	sigaddset(&usr1, SIGUSR1);
	threads[0] = start_thread(judge_clocks_always, NULL, NULL);
	threads[1] = start_thread(trace_on_request, NULL, NULL);
	while (until_the_end(&usr1) != SIGTERM) {
		is_to_trace = !is_to_trace;
	}
	is_to_trace = 0;
	for (int i = 0; i < 2; i++) {
		pthread_join(threads[i], NULL);
	}
	return verdict();
}

int main(void) {
	sigset_t usr1;
	pid_t first = getpid();
	int status, own;
	void *refusal;

	begin();
	sigemptyset(&usr1);
	sigaddset(&usr1, SIGUSR1);
	pthread_sigmask(SIG_BLOCK, &usr1, NULL);
	/* For Yama; other kernels do not know the call. */
	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
	other = fork();
	if (other == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
		other = first;
		return live();
	}
	pthread_join(start_thread(may_trace, NULL, NULL), &refusal);
	if (refusal) {
		fprintf(stderr, "PTRACE_SEIZE: %s\n", (char *)refusal);
		return NOT_ON_THIS_KERNEL;
	}
	printf("%d\n", other);
	say("ready");
	own = live();
	kill(other, SIGTERM);
	expect(waitpid(other, &status, 0) == other, "waitpid: errno", errno);
	return own ? own : WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
