/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "host.h"
#include "complain.h"
#include "publisher.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Sets every signal that can be forwarded: all but those that a fault raises in the faulting process itself. */
static void signals_to_pass_on(sigset_t *signals) {
	static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGTSTP, SIGTTIN, SIGTTOU};

	sigfillset(signals);
	for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
		sigdelset(signals, own[i]);
}

static int exit_as(int status) {
	if (WIFSIGNALED(status)) {
		sigset_t one;

		signal(WTERMSIG(status), SIG_DFL);
		sigemptyset(&one);
		sigaddset(&one, WTERMSIG(status));
		sigprocmask(SIG_UNBLOCK, &one, NULL);
		raise(WTERMSIG(status));
	}
	return WEXITSTATUS(status);
}

static void report(const struct publisher *publisher) {
	struct fastpath_state state = {.size = sizeof(state)};

	fastpath_state_of(&publisher->publisher, &state);
	fprintf(stderr, "%s: %s; clocks on the page: %#x; %.6f ns a count; %llu refreshes\n",
		program_invocation_short_name, fastpath_distrust_string(publisher->distrust), (unsigned)state.clocks,
		state.ns_per_cycle, (unsigned long long)state.refreshes);
}

int host_program(become_fn *become, char **command, char **envp, int verbose) {
	static struct publisher publisher;
	sigset_t signals, usual;
	pid_t program;
	int status;

	if (start_publisher(&publisher))
		return EXIT_LOADER_FAILED;
	if (verbose)
		report(&publisher);
	signals_to_pass_on(&signals);
	sigprocmask(SIG_BLOCK, &signals, &usual);
	program = fork();
	if (program < 0) {
		complain_errno("fork");
		return EXIT_LOADER_FAILED;
	}
	if (program == 0) {
		const uint32_t flags = publisher.distrust == FASTPATH_BELIEVED ? 0 : FASTPATH_INSTANCE_NO_CLOCKS;

		leave_publisher(&publisher);
		sigprocmask(SIG_SETMASK, &usual, NULL);
		become(command, envp, publisher.page_fd, flags);
		_exit(EXIT_CANNOT_RUN);
	}
	status = publish_until_exit(&publisher, program, &signals);
	if (verbose)
		report(&publisher);
	return status < 0 ? EXIT_LOADER_FAILED : exit_as(status);
}
