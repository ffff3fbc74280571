/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The page, and the loop that keeps it fresh for as long as the program runs. */
#ifndef LOADER_PUBLISHER_H
#define LOADER_PUBLISHER_H

#include <fastpath.h>
#include <signal.h>
#include <sys/types.h>

struct publisher {
	fastpath_publisher publisher;
	void *page;        /* writable, only here */
	int page_fd;       /* for readers */
	uint32_t distrust; /* FASTPATH_BELIEVED, or why nothing is ever published */
};

/*
 * Makes the page, in a file that cannot be mapped writable anywhere else, and puts a first anchor on it if this host's
 * counter can be trusted. Returns 0, or -1 after a message.
 */
int start_publisher(struct publisher *publisher);

/* For the process that becomes the program: keeps only the descriptor. */
void leave_publisher(struct publisher *publisher);

/*
 * Publishes until `program` ends, and forwards to it the signals that were sent to this process: `signals` are blocked
 * here, SIGCHLD among them. Returns the program's wait status, or -1 after a message.
 */
int publish_until_exit(struct publisher *publisher, pid_t program, const sigset_t *signals);

#endif
