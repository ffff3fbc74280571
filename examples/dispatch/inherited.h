/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* What a program that the guest executes gets from its host: for one, three descriptors that the guest cannot close. */
#ifndef DISPATCH_INHERITED_H
#define DISPATCH_INHERITED_H

#include <stdint.h>

struct inherited {
	int page; /* of the clocks */
	int host; /* this program */
	int log;  /* counters (log.h) */
	/* Of an instance of the image. */
	uint32_t flags;
	/* Id of the publisher, the parent of the first program. */
	int publisher;
};

extern struct inherited inherited;

static inline int is_inherited(unsigned descriptor) {
	return (int)descriptor == inherited.page || (int)descriptor == inherited.host ||
	       (int)descriptor == inherited.log;
}

#endif
