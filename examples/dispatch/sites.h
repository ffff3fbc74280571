/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The guest's system call instructions: one that traps a second time, with a call that the image answers, is led to the
 * image, with all of its file for which that can be proven. So it traps no more.
 */
#ifndef DISPATCH_SITES_H
#define DISPATCH_SITES_H

#include <stddef.h>
#include <stdint.h>

/* Whether the image may answer a call; `descriptor` is its first argument. */
int is_answerable(long number, unsigned descriptor);

enum answerer {
	BY_KERNEL,
	/* The handler asks the image. */
	BY_HANDLER,
};

/*
 * Returns who answers the site that has just trapped with such a call. A site that cannot be led is the handler's.
 * Those in memory that is not a file's are the kernel's: code there may be replaced at any time, and fastpath-hosttest
 * takes the truth there.
 */
enum answerer next_answer(uint64_t site);

#endif
