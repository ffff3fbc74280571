/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* uring: three threads, each with its own io_uring: one submits its requests itself, for one a kernel thread polls
 * (IORING_SETUP_SQPOLL), and one gives all its requests to kernel workers (IOSQE_ASYNC). Each requests a no-operation,
 * a read and a timeout in turns, waits for all three, and compares the results with the expected ones. Exits with 125
 * if there is no io_uring. */
#include "judge.h"

#include <linux/io_uring.h>
#include <sys/mman.h>

enum { ENTRIES = 8, BLOCK = 4096, BLOCKS = 64, REQUESTS = 3, TIMEOUT_NS = 5 * NS_PER_MS };

struct ring {
	const char *name;
	unsigned int setup, request_flags;
	struct work *rounds;
	/* Set by the kernel. */
	int fd;
	struct io_uring_params parameters;
	char *queues;
	struct io_uring_sqe *entries;
};

static struct ring rings[] = {
    {.name = "rounds by the caller"},
    {.name = "rounds by a poller", .setup = IORING_SETUP_SQPOLL},
    {.name = "rounds by workers", .request_flags = IOSQE_ASYNC},
};
enum { RINGS = sizeof(rings) / sizeof(*rings) };

static int file;

static unsigned char byte_of(long long block) { return block * 7 + 1; }

static _Atomic unsigned int *word(struct ring *ring, unsigned int offset) {
	return (_Atomic unsigned int *)(ring->queues + offset);
}

static void set_up(struct ring *ring) {
	struct io_uring_params *p = &ring->parameters;

	p->flags = ring->setup;
	p->sq_thread_idle = 2;
	ring->fd = syscall(SYS_io_uring_setup, ENTRIES, p);
	if (ring->fd < 0 || !(p->features & IORING_FEAT_SINGLE_MMAP)) {
		perror("io_uring");
		exit(NOT_ON_THIS_KERNEL);
	}
	ring->queues =
	    mmap(NULL, p->cq_off.cqes + p->cq_entries * sizeof(struct io_uring_cqe) + p->sq_entries * sizeof(int),
		 PROT_READ | PROT_WRITE, MAP_SHARED, ring->fd, IORING_OFF_SQ_RING);
	ring->entries = mmap(NULL, p->sq_entries * sizeof(struct io_uring_sqe), PROT_READ | PROT_WRITE, MAP_SHARED,
			     ring->fd, IORING_OFF_SQES);
	if (ring->queues == MAP_FAILED || ring->entries == MAP_FAILED) {
		perror("io_uring: mmap");
		exit(1);
	}
}

/* Puts a request into the submission queue. */
static void ask(struct ring *ring, struct io_uring_sqe request) {
	const struct io_sqring_offsets *at = &ring->parameters.sq_off;
	unsigned int tail = *word(ring, at->tail), index = tail & *word(ring, at->ring_mask);

	request.flags |= ring->request_flags;
	ring->entries[index] = request;
	*word(ring, at->array + index * sizeof(int)) = index;
	*word(ring, at->tail) = tail + 1;
}

static int enter(struct ring *ring, unsigned int submit, unsigned int wait, unsigned int flags) {
	return syscall(SYS_io_uring_enter, ring->fd, submit, wait, flags, NULL, 0);
}

/* Waits in the same call in every other round: a call that has submitted requests returns their number, even if its
 * wait was interrupted. */
static void hand_over(struct ring *ring, long long round) {
	int taken;

	if (ring->setup & IORING_SETUP_SQPOLL) {
		if (*word(ring, ring->parameters.sq_off.flags) & IORING_SQ_NEED_WAKEUP) {
			taken = enter(ring, REQUESTS, 0, IORING_ENTER_SQ_WAKEUP);
			expect(taken >= 0, "io_uring_enter (wake up): errno", errno);
		}
		return;
	}
	taken = enter(ring, REQUESTS, round % 2 ? REQUESTS : 0, round % 2 ? IORING_ENTER_GETEVENTS : 0);
	expect(taken == REQUESTS, "io_uring_enter (submit)", taken < 0 ? -errno : taken);
}

/* Waits for the next completion: the wait ends when it is there, and not before. */
static void await(struct ring *ring, long long *user_data, int *result) {
	const struct io_cqring_offsets *at = &ring->parameters.cq_off;
	unsigned int head = *word(ring, at->head);
	const struct io_uring_cqe *done;

	while (head == *word(ring, at->tail)) {
		int answer = enter(ring, 0, 1, IORING_ENTER_GETEVENTS);

		expect(answer == 0, "io_uring_enter (wait)", answer < 0 ? -errno : answer);
	}
	done = &((const struct io_uring_cqe *)(ring->queues + at->cqes))[head & *word(ring, at->ring_mask)];
	*user_data = done->user_data;
	*result = done->res;
	*word(ring, at->head) = head + 1;
}

enum { NOP = 1, READ, TIMEOUT };

static void one_round(struct ring *ring, long long round) {
	static _Thread_local unsigned char block[BLOCK];
	const struct __kernel_timespec timeout = {.tv_nsec = TIMEOUT_NS};
	long long which = round % BLOCKS, begun;
	int seen = 0;

	memset(block, 0, sizeof(block));
	/* Before the requests: a poller takes each at once. */
	begun = judge_clocks();
	ask(ring, (struct io_uring_sqe){.opcode = IORING_OP_NOP, .user_data = round << 2 | NOP});
	ask(ring, (struct io_uring_sqe){.opcode = IORING_OP_READ,
					.fd = file,
					.off = which * BLOCK,
					.addr = (unsigned long)block,
					.len = BLOCK,
					.user_data = round << 2 | READ});
	ask(ring, (struct io_uring_sqe){.opcode = IORING_OP_TIMEOUT,
					.fd = -1,
					.addr = (unsigned long)&timeout,
					.len = 1,
					.user_data = round << 2 | TIMEOUT});
	hand_over(ring, round);
	for (int i = 0; i < REQUESTS; i++) {
		long long now, user_data;
		int kind, result;

		await(ring, &user_data, &result);
		now = judge_clocks();
		kind = user_data & 3;

		expect(user_data >> 2 == round, "a completion of another round", user_data);
		expect(!(seen & 1 << kind), "a completion twice, kind", kind);
		seen |= 1 << kind;
		if (kind == NOP) {
			expect(result == 0, "a no-operation failed", result);
		} else if (kind == READ) {
			expect(result == BLOCK, "a read failed", result);
			for (int j = 0; j < BLOCK; j++) {
				expect(block[j] == byte_of(which), "a read byte is wrong, at", j);
			}
		} else {
			expect(result == -ETIME, "a timeout failed", result);
			expect(now - begun >= TIMEOUT_NS, "a timeout was too short, ns", now - begun);
		}
	}
	ring->rounds->times++;
}

static void *live(void *ring) {
	for (long long round = 0; !is_over; round++) {
		one_round(ring, round);
	}
	return NULL;
}

int main(void) {
	pthread_t threads[RINGS + 1];
	unsigned char block[BLOCK];

	begin();
	file = memfd_create("blocks", MFD_CLOEXEC);
	for (int i = 0; i < BLOCKS; i++) {
		memset(block, byte_of(i), sizeof(block));
		if (write(file, block, sizeof(block)) != sizeof(block)) {
			return 1;
		}
	}
	for (int i = 0; i < RINGS; i++) {
		rings[i].rounds = kind_of_work(rings[i].name);
		set_up(&rings[i]);
	}
	for (int i = 0; i < RINGS; i++) {
		threads[i] = start_thread(live, &rings[i], NULL);
	}
	threads[RINGS] = start_thread(judge_clocks_always, NULL, NULL);
	say("ready");
	until_the_end(NULL);
	for (int i = 0; i <= RINGS; i++) {
		pthread_join(threads[i], NULL);
	}
	return verdict();
}
