/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* One request to fastpathd, and its answer. */
#ifndef FASTPATH_PRELOAD_CONVERSATION_H
#define FASTPATH_PRELOAD_CONVERSATION_H

#include "why.h"

/* In the order in which they travel; FASTPATHD_PAGE has no plan. */
enum { FP_PAGE_FD, FP_MAILBOX_FD, FP_PLAN_FD, FP_DESCRIPTORS };

struct prepared {
	struct fastpathd_answer answer;
	int fd[FP_DESCRIPTORS];
};

struct daemon {
	const char *path;
	uint32_t timeout_ms;
	uint32_t user; /* of this process: the daemon must be this user's or root's */
};

/* Sends a request for a page to the daemon, FASTPATHD_PREPARE or FASTPATHD_PAGE. If it does not answer soon, the
 * program starts without it. */
bool fp_prepare(const struct daemon *daemon, const struct fastpathd_request *request, struct prepared *prepared,
		struct why *why);

/* Closes the descriptors of an answer. */
void fp_let_go(const struct prepared *prepared);

#endif
