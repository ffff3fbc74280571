/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The protocol between fastpathd and its clients.
 *
 * A client connects a Unix socket of type SOCK_SEQPACKET to the path in the environment variable FASTPATH_SOCKET, or
 * else to FASTPATHD_SOCKET. It sends one fastpathd_request and receives one fastpathd_answer; descriptors travel
 * with either (unix(7), SCM_RIGHTS). It may send more requests on the same connection, one after the other. The
 * daemon closes the connection of a client that sends or reads nothing for a few seconds.
 *
 * All numbers are little-endian. Reserved fields are 0. A text ends with a 0.
 *
 * The Rust side is core/protocol/src/message.rs; a test asserts that the two agree.
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
	/* Requests a page for a process. The answer has its descriptor (to be mapped read-only) and the mailbox's
	 * (to be mapped shared, for reading and writing: the page is kept while any process maps its mailbox). */
	FASTPATHD_PAGE = 1,
	/* Requests all that is needed to redirect the peer's own vDSO to an image of fastpath's: page, mailbox, and
	 * the plan, a sealed memfd, whose contents fastpathd_answer describes. */
	FASTPATHD_PREPARE = 2,
	/* Requests the state of the publisher, and the pages that the peer may see. The answer is text_size bytes of
	 * JSON (at most FASTPATHD_TEXT) that follow fastpathd_answer in the same packet. If the JSON's "next" is a
	 * number, there are more pages: the next request has it in `after`. */
	FASTPATHD_STATUS = 3,
	/* Has the daemon attach a process, its descendants, and the programs that they execute from then on: as a rule
	 * of the policy with `children`. Only for root. The answer comes before the process is attached; the daemon's
	 * log has the result. */
	FASTPATHD_ATTACH = 5,
};

/* fastpathd_request.flags: the descriptors that travel with the request, in this order. */
/* PAGE: a pidfd of the page's process. Without it, the process is the peer. ATTACH: a pidfd of the process.
 */
#define FASTPATHD_WITH_PROCESS 1u
/* PAGE: a mailbox of the client (a memfd of 4096 bytes that is sealed against shrinking and growing), which keeps
 * the page; the answer has none. For an attendant, which gives page and mailbox to other processes. */
#define FASTPATHD_WITH_MAILBOX 2u
/* PAGE: the client reads the page by its own code (fastpath-clock.h), and its vDSO is not redirected. */
#define FASTPATHD_FOR_CLOCK 4u

struct fastpathd_request {
	uint64_t magic;
	uint32_t version;
	uint32_t operation; /* enum fastpathd_operation */
	uint32_t flags;
	/* PAGE, PREPARE, ATTACH: a bit per clock id to be answered (1 << CLOCK_MONOTONIC ...). 0: those whose present
	 * path is slow on this host; if there is none, the answer is FASTPATHD_ENOTHING. */
	uint32_t clocks;
	uint32_t machine; /* PREPARE: e_machine of the peer's vDSO: 62 (EM_X86_64) or 183 (EM_AARCH64) */
	uint32_t reserved;
	uint64_t vdso; /* PREPARE: the address of the kernel's vDSO, from AT_SYSINFO_EHDR */
	uint64_t
	    region; /* PREPARE: address of FASTPATHD_REGION_ROOM free bytes, page-aligned, within a jump of the vDSO */
	uint64_t after; /* STATUS: 0, or "next" of the last answer */
	uint64_t reserved2;
};
/* Only root and the process's own user get another process's page. */

/* Size of the address space that a client reserves for a region: no plan needs more. */
#define FASTPATHD_REGION_ROOM 524288u

/* Where a client maps a mailbox, above its page, so that the next daemon finds both if this one dies. Arm's kernels may
 * have pages of 64 KiB. */
#if defined(__aarch64__) || defined(__arm__)
#define FASTPATHD_MAILBOX_OFFSET 262144u
#else
#define FASTPATHD_MAILBOX_OFFSET 24576u
#endif

enum fastpathd_error {
	FASTPATHD_OK = 0,
	FASTPATHD_EMALFORMED = 1,   /* not a request */
	FASTPATHD_EVERSION = 2,     /* a request of another version than the daemon's, which is the answer's */
	FASTPATHD_EDENIED = 3,      /* another user's process */
	FASTPATHD_ENOTHING = 4,     /* every requested clock is fast by the kernel's own path */
	FASTPATHD_ECOUNTER = 5,     /* the counter of this host cannot be believed */
	FASTPATHD_EUNSUPPORTED = 6, /* not a process, or not a vDSO, that can be served */
	FASTPATHD_ELIMIT = 7,       /* this user has reached the limit of pages or connections */
	FASTPATHD_EPROCESS = 8,     /* the process has ended */
	FASTPATHD_EINTERNAL = 9,    /* an internal error of the daemon */
	FASTPATHD_EPOLICY = 10,     /* the policy forbids it */
};

/* Contents of a part of the region. */
enum fastpathd_source {
	FASTPATHD_BYTES = 1,     /* private memory: file_size bytes of the plan, from file_offset, then zeros */
	FASTPATHD_FROM_PAGE = 2, /* the page, mapped shared */
	FASTPATHD_MAILBOX = 3,   /* the mailbox, mapped shared */
};

struct fastpathd_section {
	uint32_t source;      /* enum fastpathd_source; 0: this one and the following are unused */
	uint32_t offset;      /* in the region; a multiple of the kernel's page */
	uint32_t size;        /* in the region; a multiple of 4096, of which whole pages are mapped */
	uint32_t protection;  /* PROT_READ 1, PROT_WRITE 2, PROT_EXEC 4: the final protection */
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
	uint32_t descriptors; /* number of descriptors with this answer: page, mailbox, plan */
	uint32_t clocks;      /* PAGE, PREPARE: the clocks that the page answers */
	uint32_t region_size; /* PREPARE: size of the region in bytes, at most FASTPATHD_REGION_ROOM */
	uint64_t text_size;   /* STATUS: size of the JSON behind this answer in bytes */
	/* PREPARE: offset in the plan of the first of `patches` fastpathd_patch. They redirect the vDSO to the
	 * region, and are written last, all of them or none. */
	uint32_t patches_offset;
	uint32_t patches;
	struct fastpathd_section section[FASTPATHD_SECTIONS]; /* PREPARE: the parts of the region */
	char sentence[FASTPATHD_SENTENCE];                    /* with an error: a description for people */
};

#define FASTPATHD_PATCH_BYTES 1024

/* A patch may replace a whole function: no other thread, and no signal handler, may run while patches are written. */
struct fastpathd_patch {
	uint64_t address; /* in the peer's vDSO */
	uint32_t size;    /* size of original and replacement, at most FASTPATHD_PATCH_BYTES */
	uint32_t reserved;
	uint8_t original[FASTPATHD_PATCH_BYTES]; /* the expected bytes; if others are there, nothing may be written */
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
FASTPATHD_ASSERT(sizeof(struct fastpathd_patch) == 2064);

#undef FASTPATHD_ASSERT

#endif
