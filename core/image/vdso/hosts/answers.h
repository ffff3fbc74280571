/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The two pages by which the image of a hosted guest answers more calls than those for clocks. They belong to one
 * process, and lie right below the clocks' page:
 *
 *     ring  |  answers  |  page  |  image
 *
 * The answers are written by the host, and the guest maps them read-only. The ring is written by the code in this
 * folder. Both are private memory with MADV_WIPEONFORK: in a child they are zero, which answers nothing, until its
 * host writes them.
 *
 * An answer and its validity are one word, so that one store changes both, and no reader sees the one without the
 * other: the value in the low half, its complement in the high half. A host that cannot make one store (it writes by
 * process_vm_writev or /proc/PID/mem) writes 0 first: a mixture of 0 and a valid word is not valid.
 *
 * Calls that return several answers read `changes` before and after: a host changes it after it has made words
 * invalid, and before it writes new ones.
 *
 * The Rust side (core/page/src/answers.rs) has the same structs; the build asserts that every offset agrees.
 */
#ifndef FASTPATH_ANSWERS_H
#define FASTPATH_ANSWERS_H

#include "page.h"

/* Index into fp_answers.words. */
enum {
	FP_ANSWER_PID,
	FP_ANSWER_TID,
	FP_ANSWER_PPID,
	FP_ANSWER_PGID,
	FP_ANSWER_SID,
	FP_ANSWER_UID,
	FP_ANSWER_EUID,
	FP_ANSWER_SUID,
	FP_ANSWER_FSUID,
	FP_ANSWER_GID,
	FP_ANSWER_EGID,
	FP_ANSWER_SGID,
	FP_ANSWER_FSGID,
	FP_ANSWERS
};

/* Descriptors that can be marked as open for reading on /dev/urandom: those below. */
#define FP_DESCRIPTORS 1024

/* getrandom and reads of marked descriptors are answered from the ring. */
#define FP_ANSWERS_RANDOM 1u

struct fp_answers {
	fp_u64 words[32];
	fp_u64 changes;
	fp_u64 flags; /* FP_ANSWERS_* */
	/* Changed by the host when the guest unmaps or protects memory: what `known` in the ring says is then void. */
	fp_u64 unmapped;
	fp_u64 reserved[29];
	fp_u64 urandom[FP_DESCRIPTORS / 64]; /* a bit per descriptor */
};

#define FP_KNOWN 64
#define FP_RING_BYTES 3072

struct fp_ring {
	/*
	 * From the highest bit: 32 for the generation, which is different after each fill and each wipe; the lock; 16
	 * for the number of bytes left, the first ones of `bytes`. 0: wiped.
	 */
	fp_u64 state;
	fp_u64 reserved[63];
	/*
	 * Pages of the guest to which the kernel has written a result, by the lowest bits of their numbers: the number,
	 * and above it the lowest bits of `unmapped` at the time.
	 */
	fp_u64 known[FP_KNOWN];
	unsigned char bytes[FP_RING_BYTES];
};

/* Most bytes of a request that the ring answers, as in getrandom(2): as many are never interrupted. */
#define FP_RANDOM_MOST 256

/* The result of a call, if it was answered. */
struct fp_answer {
	long is_answered;
	long result;
};

#endif
