/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Reads of descriptors (reads.h).
 */
#include "reads.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

enum { READ_BYTES = 16 };

const char *kind_name(unsigned kind) {
	switch (kind) {
	case KIND_RANDOM:
		return "random bytes";
	case KIND_ZERO:
		return "zeros";
	case KIND_END:
		return "end of file";
	case KIND_CLOSED:
		return "EBADF";
	case KIND_EMPTY:
		return "EAGAIN";
	default:
		return "something else";
	}
}

enum kind read_kind(int descriptor, enum way way) {
	unsigned char bytes[READ_BYTES];
	long result;
	unsigned sum = 0;

	memset(bytes, 0x55, sizeof(bytes));
	result = ask(way, CALL_read, descriptor, (long)bytes, sizeof(bytes));
	if (result == -EBADF)
		return KIND_CLOSED;
	if (result == -EAGAIN)
		return KIND_EMPTY;
	if (result == 0)
		return KIND_END;
	if (result != sizeof(bytes))
		return KIND_OTHER;
	for (unsigned i = 0; i < sizeof(bytes); i++)
		sum |= bytes[i];
	return sum ? KIND_RANDOM : KIND_ZERO;
}

void check_kind(int descriptor, enum kind wanted, const char *when) {
	for (enum way way = BY_TRUTH; way < WAYS; way++)
		if (has_way(way, CALL_read)) {
			const enum kind got = read_kind(descriptor, way);

			expect(got == wanted, "%s: read by %s: %s instead of %s", when, way_names[way], kind_name(got),
			       kind_name(wanted));
		}
}

int open_kind(enum kind kind) {
	/* One pipe for all, whose other end stays open: it would be at its end without it. */
	static int ends[2] = {-1, -1};
	int file = -1;

	if (kind == KIND_RANDOM)
		file = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
	else if (kind == KIND_ZERO)
		file = open("/dev/zero", O_RDONLY | O_CLOEXEC);
	else if (kind == KIND_END)
		file = open("/dev/null", O_RDONLY | O_CLOEXEC);
	else if (kind == KIND_CLOSED)
		file = open("/dev/urandom", O_WRONLY | O_CLOEXEC);
	else if (ends[0] >= 0 || pipe2(ends, O_NONBLOCK | O_CLOEXEC) == 0)
		file = fcntl(ends[0], F_DUPFD_CLOEXEC, 0);
	if (file < 0) {
		skip("%s: %s", kind == KIND_RANDOM ? "/dev/urandom" : "/dev/zero, /dev/null or a pipe",
		     strerror(errno));
		_exit(0);
	}
	return file;
}

struct reading *reading_new(int descriptor, enum kind kind, const char *when) {
	struct reading *reading = shared_memory(sizeof(*reading));

	reading->descriptor = descriptor;
	reading->when = when;
	reading->kinds[0] = kind;
	return reading;
}

void reading_begin(struct reading *reading, unsigned kinds) {
	const unsigned long begun = atomic_load(&reading->begun);

	atomic_store(&reading->kinds[(begun + 1) % KINDS], kinds);
	atomic_store(&reading->begun, begun + 1);
}

void reading_done(struct reading *reading) { atomic_fetch_add(&reading->done, 1); }

void reading_ask(struct reading *reading) {
	unsigned long from, to;
	unsigned kinds = 0;
	enum kind got;
	enum way way;

	do
		way = pick(WAYS);
	while (!has_way(way, CALL_read));
	from = atomic_load(&reading->done);
	got = read_kind(reading->descriptor, way);
	to = atomic_load(&reading->begun);
	if (to - from >= KINDS - 1)
		return;
	for (unsigned long i = from; i <= to; i++)
		kinds |= atomic_load(&reading->kinds[i % KINDS]);
	/* Some of them may have been replaced meanwhile by later ones. */
	if (atomic_load(&reading->begun) - from >= KINDS - 1)
		return;
	expect(got & kinds, "%s: read by %s: %s %s change %lu", reading->when, way_names[way], kind_name(got),
	       to > from ? "during" : "after", to);
}

void reading_loop(struct reading *reading) {
	atomic_fetch_add(&reading->readers, 1);
	while (!atomic_load(&reading->is_over))
		reading_ask(reading);
}

static void *reader(void *reading) {
	is_beside = 1;
	pick_seed(seed + 100 + atomic_load(&((struct reading *)reading)->readers));
	reading_loop(reading);
	return NULL;
}

void reading_start(struct reading *reading, unsigned long threads[READING_THREADS]) {
	for (unsigned i = 0; i < READING_THREADS; i++)
		if (pthread_create((pthread_t *)&threads[i], NULL, reader, reading)) {
			skip("pthread_create");
			_exit(0);
		}
	while (atomic_load(&reading->readers) < READING_THREADS)
		nap(100);
}

void reading_join(struct reading *reading, unsigned long threads[READING_THREADS]) {
	atomic_store(&reading->is_over, 1);
	for (unsigned i = 0; i < READING_THREADS; i++)
		pthread_join((pthread_t)threads[i], NULL);
}
