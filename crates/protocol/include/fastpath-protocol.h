/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What fastpathd and its clients say to each other.
 *
 * A client connects a Unix socket of type SOCK_SEQPACKET to the path in the environment variable FASTPATH_SOCKET, or
 * else to FASTPATHD_SOCKET. It sends one fastpathd_request and receives one fastpathd_answer; descriptors travel with
 * either (unix(7), SCM_RIGHTS). It may send more requests on the same connection, one after the other. The daemon gives
 * a client that says nothing, or reads nothing, a few seconds and then closes.
 *
 * All numbers are little-endian. What is reserved is 0. A text ends with a 0.
 *
 * The Rust side is crates/protocol/src/message.rs; a test asserts that the two agree.
 */
#ifndef FASTPATH_PROTOCOL_H
#define FASTPATH_PROTOCOL_H

#include <stddef.h>
#include <stdint.h>

#define FASTPATHD_SOCKET "/run/fastpath/fastpathd.sock"
/* The first eight bytes of every message: "fastpath". */
#define FASTPATHD_MAGIC 0x6874617074736166ull
#define FASTPATHD_VERSION 1u

enum fastpathd_operation {
	/* A page for a process. Answered with its descriptor (to be mapped read-only) and the mailbox's (to be mapped
	 * shared, for reading and writing: the page is kept for as long as any process maps its mailbox). */
	FASTPATHD_PAGE = 1,
	/* All that it takes to lead the peer's own vDSO to an image of fastpath's: page, mailbox, and the plan, a
	 * sealed memfd, whose contents fastpathd_answer describes. */
	FASTPATHD_PREPARE = 2,
	/* Who publishes, and the pages that the peer may see. Answered with text_size bytes of JSON (at most
	 * FASTPATHD_TEXT) that follow fastpathd_answer in the same packet. If the JSON's "next" is a number, there are
	 * more pages: the next request has it in `after`. */
	FASTPATHD_STATUS = 3,
	/* Takes the clocks off a process's pages for good: it reads by the kernel from now on. */
	FASTPATHD_WITHDRAW = 4,
};

/* fastpathd_request.flags: what travels with the request, in this order. */
/* PAGE, WITHDRAW: a pidfd says whose page it is. Without it, it is the peer's own. */
#define FASTPATHD_WITH_PROCESS 1u
/* PAGE: a mailbox of the client's own (a memfd of 4096 bytes that is sealed against shrinking and growing) is what
 * keeps the page, and none comes with the answer: for an attendant, who gives page and mailbox to others. */
#define FASTPATHD_WITH_MAILBOX 2u

struct fastpathd_request {
	uint64_t magic;
	uint32_t version;
	uint32_t operation; /* enum fastpathd_operation */
	uint32_t flags;
	/* PAGE, PREPARE: a bit per clock id that shall be answered (1 << CLOCK_MONOTONIC ...). 0: those whose present
	 * path is slow on this host; if there is none, the answer is FASTPATHD_ENOTHING. */
	uint32_t clocks;
	uint32_t machine; /* PREPARE: e_machine of the peer's vDSO: 62 (EM_X86_64) or 183 (EM_AARCH64) */
	uint32_t reserved;
	uint64_t vdso; /* PREPARE: the address of the kernel's vDSO, as AT_SYSINFO_EHDR tells it */
	uint64_t
	    region; /* PREPARE: where FASTPATHD_REGION_ROOM bytes are free, page-aligned, within a jump of the vDSO */
	uint64_t after; /* STATUS: 0, or what the last answer's "next" says */
	uint64_t reserved2;
};
/* Another process's page is given to root, and to the process's own user. */

/* So much room a client keeps for a region: no plan has more. */
#define FASTPATHD_REGION_ROOM 65536u

enum fastpathd_error {
	FASTPATHD_OK = 0,
	FASTPATHD_EMALFORMED = 1,   /* not a request */
	FASTPATHD_EVERSION = 2,     /* a request of another version than the answer's */
	FASTPATHD_EDENIED = 3,      /* another user's process */
	FASTPATHD_ENOTHING = 4,     /* every clock that was asked for is fast by the kernel's own path */
	FASTPATHD_ECOUNTER = 5,     /* the counter of this host cannot be believed */
	FASTPATHD_EUNSUPPORTED = 6, /* not a process, or not a vDSO, that can be served */
	FASTPATHD_ELIMIT = 7,       /* this user has as many pages or connections as one may have */
	FASTPATHD_EPROCESS = 8,     /* there is no such process any more */
	FASTPATHD_EINTERNAL = 9,    /* the daemon's own trouble */
	FASTPATHD_EPOLICY = 10,     /* the policy says never */
};

/* What a part of the region is made of. */
enum fastpathd_source {
	FASTPATHD_BYTES = 1, /* file_size bytes of the plan, at file_offset, and zeros behind them: private memory */
	FASTPATHD_FROM_PAGE = 2, /* the page, mapped shared */
	FASTPATHD_MAILBOX = 3,   /* the mailbox, mapped shared */
};

struct fastpathd_section {
	uint32_t source;      /* enum fastpathd_source; 0: this and those that follow are not in use */
	uint32_t offset;      /* in the region; a multiple of 4096 */
	uint32_t size;        /* in the region; a multiple of 4096 */
	uint32_t protection;  /* PROT_READ 1, PROT_WRITE 2, PROT_EXEC 4: what it has in the end */
	uint32_t file_offset; /* in the plan */
	uint32_t file_size;   /* in the plan, at most size */
};

#define FASTPATHD_SECTIONS 8
#define FASTPATHD_SENTENCE 256
#define FASTPATHD_TEXT 24576

struct fastpathd_answer {
	uint64_t magic;
	uint32_t version;
	uint32_t operation;   /* the request's */
	uint32_t error;       /* enum fastpathd_error */
	uint32_t descriptors; /* how many travel with this answer: page, mailbox, plan */
	uint32_t clocks;      /* PAGE, PREPARE: those that the page answers */
	uint32_t region_size; /* PREPARE: bytes of the region, at most FASTPATHD_REGION_ROOM */
	uint64_t text_size;   /* STATUS: bytes of JSON behind this answer */
	/* PREPARE: the first of `patches` fastpathd_patch in the plan. They put the region in force, and are written
	 * last, all of them or none. */
	uint32_t patches_offset;
	uint32_t patches;
	struct fastpathd_section section[FASTPATHD_SECTIONS]; /* PREPARE: what the region is made of */
	char sentence[FASTPATHD_SENTENCE]; /* with an error: what is the matter, for a person to read */
};

#define FASTPATHD_PATCH_BYTES 24

struct fastpathd_patch {
	uint64_t address; /* in the peer's vDSO */
	uint32_t size;    /* of original and replacement, at most FASTPATHD_PATCH_BYTES */
	uint32_t reserved;
	uint8_t original[FASTPATHD_PATCH_BYTES]; /* what must stand there; if it does not, nothing may be written */
	uint8_t replacement[FASTPATHD_PATCH_BYTES];
};

#ifdef __cplusplus
#define FASTPATHD_ASSERT(condition) static_assert(condition, #condition)
#else
#define FASTPATHD_ASSERT(condition) _Static_assert(condition, #condition)
#endif

FASTPATHD_ASSERT(sizeof(struct fastpathd_request) == 64);
FASTPATHD_ASSERT(sizeof(struct fastpathd_section) == 24);
FASTPATHD_ASSERT(sizeof(struct fastpathd_answer) == 496);
FASTPATHD_ASSERT(sizeof(struct fastpathd_patch) == 64);

#undef FASTPATHD_ASSERT

#endif
