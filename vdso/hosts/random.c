/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The ring of random bytes (answers.h).
 *
 * A thread claims the last of the bytes that are left, and counts itself as one that copies; then it copies and erases
 * them; then it takes itself off the count. The ring is filled only while nobody copies, so no byte is written while
 * it is copied. A signal may interrupt anywhere: the handler claims other bytes. A thread that never comes back to
 * its copy (siglongjmp) makes the ring empty for good, and the kernel answers.
 *
 * A fork wipes the child's ring, also in the middle of this code if a signal handler forks: the generation has
 * changed then, and the kernel answers instead.
 */
#include "answers.h"
#include "compiler.h"
#include "guest.h"
#include "isa.h"
#include "syscall.h"

enum { GRND_NONBLOCK = 1 };

#define LEFT 0xffffu
#define ONE_USER 0x10000u
#define USERS 0xffff0000u
#define MOST_USERS (USERS - ONE_USER)
#define FILLING USERS
#define GENERATION_SHIFT 32

FP_INLINE int exchange(fp_u64 *state, fp_u64 *from, fp_u64 to) {
	return __atomic_compare_exchange_n(state, from, to, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

FP_INLINE fp_u64 generation(fp_u64 state) { return state >> GENERATION_SHIFT; }

/* Claims bytes of the ring. Returns 0 if there are too few, else 1 and the state after it. */
FP_INLINE int claim(fp_u64 *ring, unsigned long size, fp_u64 *state) {
	fp_u64 before = __atomic_load_n(ring, __ATOMIC_ACQUIRE);

	do {
		if ((before & LEFT) < size || (before & USERS) >= MOST_USERS)
			return 0;
		*state = before - size + ONE_USER;
	} while (!exchange(ring, &before, *state));
	return 1;
}

/* Ends a copy. Returns 0 if the ring was wiped since. */
FP_INLINE int release(fp_u64 *ring, fp_u64 claimed) {
	fp_u64 now = claimed;

	do {
		if (generation(now) != generation(claimed) || !(now & USERS))
			return 0;
	} while (!exchange(ring, &now, now - ONE_USER));
	return 1;
}

/* Moves bytes, and leaves zeros. The barriers keep compilers from calling memset, which the image does not have. */
FP_INLINE void move_bytes(unsigned char *to, unsigned char *from, unsigned long size) {
	for (; size >= 8; size -= 8, to += 8, from += 8) {
		__builtin_memcpy(to, from, 8);
		__builtin_memset(from, 0, 8);
		fp_compiler_barrier();
	}
	for (; size; size--) {
		*to++ = *from;
		*from++ = 0;
		fp_compiler_barrier();
	}
}

/* Fills the ring, if nobody copies and nobody else fills it. */
static FP_COLD void fill(struct fp_ring *ring) {
	fp_u64 state = __atomic_load_n(&ring->state, __ATOMIC_ACQUIRE), filling;
	fp_u32 next = generation(state) + 1;
	long got;

	if (state & USERS)
		return;
	/* A wiped ring: its first generation must not be one of the parent's. */
	if (!state && fp_syscall3(FP_NR_getrandom, (long)&next, sizeof(next), GRND_NONBLOCK) != sizeof(next))
		return;
	filling = (fp_u64)next << GENERATION_SHIFT | FILLING;
	if (!exchange(&ring->state, &state, filling))
		return;
	got = fp_syscall3(FP_NR_getrandom, (long)ring->bytes, sizeof(ring->bytes), GRND_NONBLOCK);
	state = (fp_u64)next << GENERATION_SHIFT | (got > 0 ? got : 0);
	exchange(&ring->state, &filling, state);
}

int fp_take_random(struct fp_buffer buffer, int may_fill) {
	struct fp_ring *ring = fp_ring();
	fp_u64 claimed;

	if (fp_unlikely(!claim(&ring->state, buffer.size, &claimed))) {
		if (!may_fill)
			return 0;
		fill(ring);
		if (!claim(&ring->state, buffer.size, &claimed))
			return 0;
	}
	move_bytes((unsigned char *)buffer.at, ring->bytes + (claimed & LEFT), buffer.size);
	return release(&ring->state, claimed);
}
