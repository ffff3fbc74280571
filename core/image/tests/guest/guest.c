/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A program of any ISA, without a C library, that executes requests from standard input: put bytes into its memory,
 * call an address, make a system call, read the counter. The tests (core/image/tests/guests) put an image and a page
 * there.
 */
#include "machine.h"

#include "counter.h"
#include "record.h"

typedef unsigned char byte;
typedef unsigned long long u64;

enum request_kind { WRITE = 1, CALL, SYSTEM_CALL, COUNTER, VSYSCALL };

/* An argument above this is replaced by the address of the buffer with that number. */
#define BUFFER (1ull << 63)

enum { BUFFERS = 3, BUFFER_SIZE = 64 };

struct request {
	u64 kind;
	u64 target; /* where in the arena; the address; the number */
	u64 argument[3];
};

struct answer {
	u64 result;
	byte buffer[BUFFERS][BUFFER_SIZE];
};

struct hello {
	u64 arena;
	u64 spy;
};

/* Room for an image and pages on both sides. */
static byte arena[1 << 20] __attribute__((aligned(65536)));
static byte buffer[BUFFERS][BUFFER_SIZE] __attribute__((aligned(16)));

/* Freestanding compilers call these. */
void *memset(void *at, int value, unsigned long size) {
	for (volatile byte *p = at; size; size--)
		*p++ = value;
	return at;
}

void *memcpy(void *to, const void *from, unsigned long size) {
	const byte *source = from;
	for (volatile byte *p = to; size; size--)
		*p++ = *source++;
	return to;
}

static void quit(int status) {
	for (;;)
		system_call(FP_NR_exit_group, status, 0, 0, 0);
}

static void transfer(long number, long fd, byte *at, unsigned long size) {
	while (size) {
		long done = system_call(number, fd, (long)at, (long)size, 0);
		if (done <= 0)
			quit(done ? 2 : 0);
		at += done;
		size -= done;
	}
}

static void receive(void *at, unsigned long size) { transfer(FP_NR_read, 0, at, size); }
static void send(void *at, unsigned long size) { transfer(FP_NR_write, 1, at, size); }

/* Replacement of a kernel's function: stores its arguments in the last buffer. */
static long spy(long a, long b, long c) {
	long seen[3] = {a, b, c};
	memcpy(buffer[BUFFERS - 1], seen, sizeof seen);
	return 42;
}

/* As nanoseconds, shortly after a CPU time of zero: an answer must not come from it. */
enum { LITTER = 0x07000000 };

/* Calls a function, and leaves litter where it may find it: on the stack, and in registers that it saves there. */
static __attribute__((noinline)) long call_in_litter(u64 target, const long *argument) {
	enum { WORDS = 512 };
	volatile unsigned words[WORDS];
	long (*function)(long, long, long) = (void *)(unsigned long)target;
	long result;

	for (int i = 0; i < WORDS; i++)
		words[i] = LITTER;
#ifdef __i386__
	long ebx = LITTER, esi = LITTER, edi = LITTER;
	__asm__ volatile("pushl 8(%%ecx)\n	pushl 4(%%ecx)\n	pushl (%%ecx)\n	call *%%eax\n	add $12, %%esp"
			 : "=a"(result), "+b"(ebx), "+S"(esi), "+D"(edi), "+c"(argument)
			 : "0"(function)
			 : "edx", "cc", "memory");
#else
	result = function(argument[0], argument[1], argument[2]);
#endif
	return result;
}

static long pointer_or_value(u64 argument) { return argument & BUFFER ? (long)buffer[argument & 3] : (long)argument; }

void run(void) {
	struct hello hello = {(unsigned long)arena, (unsigned long)spy};
	enum { READ_WRITE_EXECUTE = 7 };

	if (system_call(FP_NR_mprotect, (long)arena, sizeof arena, READ_WRITE_EXECUTE, 0))
		quit(3);
	send(&hello, sizeof hello);
	for (;;) {
		struct request request;
		struct answer answer;
		long argument[3];

		receive(&request, sizeof request);
		for (int i = 0; i < 3; i++)
			argument[i] = pointer_or_value(request.argument[i]);
		memset(buffer, 0x5a, sizeof buffer);
		answer.result = 0;
		switch (request.kind) {
		case WRITE:
			receive(arena + request.target, request.argument[0]);
			break;
		case CALL:
			/* An int, by the ABI: the upper half is undefined. */
			answer.result = (int)call_in_litter(request.target, argument);
			break;
		case SYSTEM_CALL:
			answer.result = system_call(request.target, argument[0], argument[1], argument[2], 0);
			break;
		case COUNTER:
#ifndef NO_COUNTER
			answer.result = fp_read_counter();
#endif
			break;
		case VSYSCALL:
			answer.result = vsyscall(request.target, argument[0], argument[1], argument[2]);
			break;
		default:
			quit(4);
		}
		memcpy(answer.buffer, buffer, sizeof buffer);
		send(&answer, sizeof answer);
	}
}
