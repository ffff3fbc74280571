/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The ring of random bytes (answers.h).
 *
 * A thread locks the ring, takes the last of the bytes that are left, erases them, and unlocks it. Others wait for the
 * lock for a short time only, and then ask the kernel: its owner may be a thread without a CPU, or the code that a
 * signal handler has interrupted. If an owner never comes back (siglongjmp out of a handler), the kernel answers from
 * then on.
 *
 * A fork wipes the child's ring, also in the middle of this code if a signal handler forks. The lock is then not what
 * it was, since it contains the generation, and the kernel answers instead. That handler may fill the child's ring anew
 * before it returns to the middle of this code, which must then erase nothing: an erased byte would be handed out.
 */
#include "answers.h"
#include "compiler.h"
#include "guest.h"
#include "isa.h"
#include "own.h"
#include "syscall.h"

enum { GRND_NONBLOCK = 1 };

#define LEFT 0xffffu
#define LOCKED 0x10000u
#define GENERATION_SHIFT 32

/* Turns that a thread waits for the lock: it is held for some nanoseconds. */
enum { TURNS = 32 };

/*
 * Moves bytes from a place in the ring, while it is locked with this state, and leaves zeros. Returns whether it still
 * is. A signal may come between any two instructions, and a fork in it with a new ring behind it: so a word is only
 * replaced if it is what it was when the ring was still this one.
 */
FP_INLINE int move_bytes(struct fp_ring *ring, fp_u64 locked, unsigned long from, struct fp_buffer buffer) {
	unsigned char *to = (unsigned char *)buffer.at;

	do {
		fp_u64 *word = (fp_u64 *)(ring->bytes + (from & ~7ul));
		const unsigned long bit = from % 8 * 8;
		const fp_u64 bytes = fp_load(word);
		fp_u64 moved = bytes >> bit, mask;
		unsigned long size = 8 - from % 8;

		fp_compiler_barrier();
		if (size > buffer.size)
			size = buffer.size;
		mask = ~(fp_u64)0 >> (64 - 8 * size) << bit;
		if (fp_load(&ring->state) != locked || !fp_replace_own(word, bytes, bytes & ~mask))
			return 0;
		from += size;
		buffer.size -= size;
		if (size == 8) {
			__builtin_memcpy(to, &moved, 8);
			to += 8;
			continue;
		}
		do {
			*to++ = moved;
			moved >>= 8;
		} while (--size);
	} while (buffer.size);
	return 1;
}

/* Returns a ring's first generation, which is not that of a parent's; 0 if there is none now. */
static FP_COLD fp_u64 first_generation(void) {
	fp_u32 generation;

	if (fp_syscall3(FP_NR_getrandom, (long)&generation, sizeof(generation), GRND_NONBLOCK) != sizeof(generation))
		return 0;
	return (fp_u64)generation << GENERATION_SHIFT;
}

/* Locks the ring. Returns its state, which has the bit LOCKED, or 0. */
FP_INLINE fp_u64 lock(fp_u64 *ring, int may_fill) {
	fp_u64 state = __atomic_load_n(ring, __ATOMIC_RELAXED), locked;

	for (int turn = 0; turn < TURNS; turn++) {
		locked = state | LOCKED;
		if (fp_unlikely(!state)) {
			if (!may_fill)
				return 0;
			locked |= first_generation();
		}
		if (fp_likely(!(state & LOCKED))) {
			if (fp_likely(__atomic_compare_exchange_n(ring, &state, locked, 0, __ATOMIC_ACQUIRE,
								  __ATOMIC_RELAXED)))
				return locked;
			continue;
		}
		fp_pause();
		state = __atomic_load_n(ring, __ATOMIC_RELAXED);
	}
	return 0;
}

/* Fills a locked ring, if it may. Returns the state to leave. */
static FP_COLD fp_u64 fill(struct fp_ring *ring, fp_u64 locked, int may_fill) {
	const fp_u64 generation = (locked >> GENERATION_SHIFT) + 1;
	long got;

	if (!may_fill)
		return locked & ~(fp_u64)LOCKED;
	got = fp_syscall3(FP_NR_getrandom, (long)ring->bytes, sizeof(ring->bytes), GRND_NONBLOCK);
	return generation << GENERATION_SHIFT | (got > 0 ? got : 0);
}

int fp_take_random(struct fp_buffer buffer, int may_fill) {
	struct fp_ring *ring = fp_ring();
	fp_u64 locked = lock(&ring->state, may_fill), left;
	int is_taken;

	if (fp_unlikely(!locked))
		return 0;
	left = locked & ~(fp_u64)LOCKED;
	if (fp_unlikely((left & LEFT) < buffer.size))
		left = fill(ring, locked, may_fill);
	is_taken = (left & LEFT) >= buffer.size;
	if (fp_likely(is_taken)) {
		left -= buffer.size;
		if (fp_unlikely(!move_bytes(ring, locked, left & LEFT, buffer)))
			return 0;
	}
	return fp_replace_own(&ring->state, locked, left) && is_taken;
}
