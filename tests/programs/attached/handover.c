/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Bytes through a pipe, and turns by a futex. They show a system call that was made twice or not at all. */
#include "attached.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>

/* One for each thread of a kind. The bytes are more than a pipe of one page holds, so that writers wait too. */
enum { PAIRS = 4, MOST_BYTES = 12000 };

static struct pair {
	_Alignas(128) int ends[2];
	_Atomic unsigned int word;
} pairs[PAIRS];

static struct pair *pair_of(const struct thread *thread) { return &pairs[thread->number % PAIRS]; }

void prepare_handover(void) {
	for (int i = 0; i < PAIRS; i++) {
		if (pipe(pairs[i].ends)) {
			fail("a pipe");
		}
		fcntl(pairs[i].ends[1], F_SETPIPE_SZ, 4096);
	}
}

/* Returns the byte at a place in the stream. */
static unsigned char byte_at(long long place) { return (unsigned char)(place * 31 + (place >> 8) * 7); }

/* Judges a failed call. The kernel restarts all of these after a handler with SA_RESTART. */
static void judge(struct thread *thread, const char *what, int signals) {
	int restarts =
	    thread->role->interrupts == AND_RESTART || thread->role->interrupts == ON_OTHER_STACK_AND_RESTART;

	if (errno != EINTR) {
		odd(thread, ODD_RESULT, what, errno);
	} else if (restarts || thread->signals == signals) {
		odd(thread, UNEXPLAINED_EINTR, what, 0);
	} else {
		thread->handled_eintr++;
	}
}

void write_pipe(struct thread *thread) {
	unsigned char bytes[MOST_BYTES];
	size_t length = 1 + random_below(thread, MOST_BYTES);
	int signals = thread->signals;
	ssize_t written;

	for (size_t i = 0; i < length; i++) {
		bytes[i] = byte_at(thread->kept + (long long)i);
	}
	written = write(pair_of(thread)->ends[1], bytes, length);
	if (written < 0) {
		judge(thread, "write", signals);
	} else {
		thread->kept += written;
	}
	look_once(&thread->order);
	sleep_ns(500000);
}

void read_pipe(struct thread *thread) {
	unsigned char bytes[MOST_BYTES];
	int signals = thread->signals;
	ssize_t length = read(pair_of(thread)->ends[0], bytes, 1 + random_below(thread, MOST_BYTES));

	if (length < 0) {
		judge(thread, "read", signals);
		return;
	}
	for (ssize_t i = 0; i < length; i++) {
		if (bytes[i] != byte_at(thread->kept + i)) {
			odd(thread, LOST_BYTES, "a pipe", thread->kept + i);
			break;
		}
	}
	thread->kept += length;
}

void wake(struct thread *thread) {
	struct pair *pair = pair_of(thread);

	sleep_ns(500000 + random_below(thread, 2000000));
	atomic_fetch_add(&pair->word, 1);
	if (syscall(SYS_futex, &pair->word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0) < 0) {
		odd(thread, ODD_RESULT, "FUTEX_WAKE", errno);
	}
}

void wait_to_be_woken(struct thread *thread) {
	struct pair *pair = pair_of(thread);
	int signals = thread->signals;
	unsigned int seen = (unsigned int)thread->kept;

	if (syscall(SYS_futex, &pair->word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0) < 0 && errno != EAGAIN) {
		judge(thread, "FUTEX_WAIT", signals);
	}
	thread->kept = atomic_load(&pair->word);
	look_once(&thread->order);
}
