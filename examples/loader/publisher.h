/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The page, and keeping it fresh for as long as the program runs. */
#ifndef LOADER_PUBLISHER_H
#define LOADER_PUBLISHER_H

#include <fastpath.h>
#include <signal.h>
#include <sys/types.h>

struct publisher {
	fastpath_publisher publisher;
	void *page;        /* writable, here only */
	int page_fd;       /* for those who read */
	uint32_t distrust; /* FASTPATH_BELIEVED, or why nothing is ever published */
};

/*
 * Makes the page, in a file that can be mapped writable nowhere else, and puts a first anchor on it if this host's
 * counter can be believed. 0, or -1 after a message.
 */
int start_publisher(struct publisher *publisher);

/* In the process that becomes the program: only the descriptor is left. */
void leave_publisher(struct publisher *publisher);

/*
 * Publishes until `program` ends, and hands it the signals that were sent to this process instead: `signals` are
 * blocked here, SIGCHLD among them. Returns what waitpid says of the program, -1 after a message.
 */
int publish_until_exit(struct publisher *publisher, pid_t program, const sigset_t *signals);

#endif
