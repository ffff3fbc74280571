/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * libfastpath: a vDSO for guests, for the authors of runtimes, sandboxes, emulators and VMMs.
 *
 * The host maps an image into its guest and a page next to it, and keeps the page fresh with a publisher. The
 * guest's clock reads then cost what reading the CPU's counter costs. A read that the page cannot answer becomes the
 * guest's own system call (or a jump to a kernel function that the host names), so the host's own implementation of
 * that call remains the reference.
 *
 *     instance:   fastpath_image_of -> fastpath_instantiate               once for each guest (and address)
 *     page:       fastpath_page_init -> fastpath_publisher_init           once for each page
 *     refreshes:  fastpath_publish, either every fastpath_state.next_window_ns (a host with a timer),
 *                 or when fastpath_trapped says so (a host that sees its guest's system calls)
 *
 * docs/libfastpath.md is the guide.
 *
 * UNITS. Times are nanoseconds (`_ns`); clocks count from their epoch. Counts (`_cycles`) are those of the CPU's
 * counter: TSC on x86, CNTVCT on Arm. `guest` counts are what the guest reads there, `host` counts what this process
 * reads. Addresses are the guest's; offsets are bytes.
 *
 * ERRORS. A function that can fail returns a negative FASTPATH_E*; fastpath_strerror() describes it. A call that
 * fails has changed nothing.
 *
 * SIZES. A struct that begins with `size` requires sizeof(itself) there, so that a later version can be longer; a
 * library that does not know that size returns FASTPATH_ESIZE. Members named `reserved` are 0.
 *
 * THREADS AND SIGNALS. The library has no global state, starts no thread, allocates nothing, takes no lock and never
 * waits. Every function may be called from any thread, and from a signal handler (async-signal-safe). The exception
 * is FASTPATH_EXAMINE_CPUS, which starts threads, allocates, waits, and must not be used in a signal handler. A
 * publisher has one writer at a time: of two concurrent calls of fastpath_publish, fastpath_publish_step or
 * fastpath_withdraw on one publisher, one works and the other returns FASTPATH_EBUSY at once. fastpath_trapped and
 * fastpath_state_of never return FASTPATH_EBUSY.
 *
 * The host ensures that fastpath_page_init and fastpath_publisher_init have returned before another thread uses the
 * object, and that memory outlives its use. Except for fastpath_publisher_init and FASTPATH_EXAMINE_CPUS (128 KiB),
 * no function needs more than 8 KiB of stack.
 */
#ifndef FASTPATH_H
#define FASTPATH_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#define FASTPATH_ALIGNAS(n) alignas(n)
#else
#define FASTPATH_ALIGNAS(n) _Alignas(n)
#endif

/* Semantic versioning. While the major version is 0, a new minor version may change the ABI; its symbols then have
 * another version. */
#define FASTPATH_VERSION_MAJOR 0
#define FASTPATH_VERSION_MINOR 1
#define FASTPATH_VERSION_PATCH 0
#define FASTPATH_VERSION (FASTPATH_VERSION_MAJOR << 16 | FASTPATH_VERSION_MINOR << 8 | FASTPATH_VERSION_PATCH)

/* Returns the library's own FASTPATH_VERSION. */
uint32_t fastpath_version(void);

/* ---- errors ---- */

#define FASTPATH_EINVAL (-1)   /* an argument that no call allows: NULL, misaligned, an unknown flag or name */
#define FASTPATH_ESIZE (-2)    /* the struct's `size` is not one that this library knows */
#define FASTPATH_ENOSPACE (-3) /* the buffer is shorter than fastpath_image_size() */
#define FASTPATH_EPLACEMENT                                                                                            \
	(-4) /* the page cannot lie at that offset: not whole pages, inside the image, or out of the ISA's reach */
#define FASTPATH_EBUSY (-5) /* another call is publishing on this publisher; there is nothing left to do here */
#define FASTPATH_ESAMPLE                                                                                               \
	(-6)                /* a clock could not be read, or the sample lacks MONOTONIC or REALTIME, or is impossible */
#define FASTPATH_EPAGE (-7) /* not a page that fastpath_page_init made */
#define FASTPATH_ECOUNTER (-8) /* no such relation of counters: more than 63 bits of fraction */
#define FASTPATH_ESTORE (-9)   /* fastpath_answers.store has failed; the words before it are stored */

/* Returns the description of an error. Never NULL; static. */
const char *fastpath_strerror(int error);

/* ---- the image ---- */

#define FASTPATH_X86_64 1
#define FASTPATH_I386 2
#define FASTPATH_AARCH64 3
#define FASTPATH_ARM 4

/* Returns the ISA that this library was compiled for. */
int fastpath_host_isa(void);
/* Returns "x86_64", "i386", "aarch64" or "arm"; NULL for another number. */
const char *fastpath_isa_name(int isa);

/* The synthetic vDSO for one ISA: an ELF shared object, position independent, mapped as it is. Static. */
typedef struct fastpath_image fastpath_image;

/* Returns the image of an ISA. NULL: no such ISA, or this build left its image out (built without clang and lld).
 * The host's own always exists. */
const fastpath_image *fastpath_image_of(int isa);
int fastpath_image_isa(const fastpath_image *image);
/* Returns the ELF file and its length. It is not to be mapped in a guest: map an instance instead. */
const void *fastpath_image_bytes(const fastpath_image *image, size_t *length);
/* Returns the bytes to map, readable and executable: whole pages of FASTPATH_PAGE_SIZE. */
size_t fastpath_image_size(const fastpath_image *image);

struct fastpath_function {
	char name[32]; /* as in the image's dynamic symbol table, terminated */
	uint64_t offset;
	uint64_t size;
};

/* Stores at most `capacity` of the functions that the image exports, including the sigreturns. Returns how many
 * there are. */
size_t fastpath_image_functions(const fastpath_image *image, struct fastpath_function *functions, size_t capacity);
/* Returns the offset of an exported function; 0 if there is none of that name. */
uint64_t fastpath_image_symbol(const fastpath_image *image, const char *name);
/* Returns the offset of the code to which a signal handler returns, for a host that builds the guest's signal
 * frames; 0 if there is none. */
uint64_t fastpath_image_rt_sigreturn(const fastpath_image *image);
uint64_t fastpath_image_sigreturn(const fastpath_image *image); /* 32-bit ISAs: for handlers without SA_SIGINFO */
/*
 * Stores the offsets just behind each of the image's own system-call instructions: the guest's program counter as a
 * tracer sees it, less the image's address, when the page could not answer. Stores at most `capacity`, and returns
 * how many there are.
 */
size_t fastpath_image_system_calls(const fastpath_image *image, uint64_t *offsets, size_t capacity);

/* ---- instances ---- */

/* Default offset of the page from the image: right below it. */
#define FASTPATH_PAGE_OFFSET_DEFAULT (-4096)

/* A function of another vDSO in the guest. `name` is without prefix: "clock_gettime", "getrandom". A function that the
 * image does not export changes nothing. */
struct fastpath_kernel_function {
	const char *name;
	uint64_t address; /* in the guest */
};

/* Makes the clock functions undefined symbols, so that the guest's libc makes the system call directly: for a host
 * whose counter is not used. Kernel functions that are named are still called. */
#define FASTPATH_INSTANCE_NO_CLOCKS 1u
/* `cpu_features` describes the guest's CPU; without this flag the image suits the CPU that this runs on. */
#define FASTPATH_INSTANCE_CPU_FEATURES 2u

#define FASTPATH_CPU_RDTSCP 1u   /* x86: CPUID 8000_0001H, EDX bit 27 */
#define FASTPATH_CPU_CNTVCTSS 2u /* AArch64: ID_AA64MMFR0_EL1.ECV is not 0 */
#define FASTPATH_CPU_FENCE 4u    /* x86: LFENCE orders RDTSC, and both take less time than RDTSCP: fastpath_examine() */

struct fastpath_instance_options {
	uint32_t size;
	uint32_t flags;        /* FASTPATH_INSTANCE_* */
	uint64_t address;      /* address of the image's first byte in the guest: a multiple of 4096 */
	int64_t page_offset;   /* page = address + page_offset: a multiple of 4096, before or after the image, within
				* reach of its code (64-bit ISAs, less 64 KiB: 2 GiB on x86-64, 4 GiB on AArch64;
				* 32-bit ISAs: anywhere, the sum is taken modulo 4 GiB) */
	uint32_t cpu_features; /* FASTPATH_CPU_* */
	uint32_t kernel_function_count;
	const struct fastpath_kernel_function
	    *kernel_functions; /* none: reads that the page cannot answer become system calls */
};

/*
 * Writes the image for one guest to `buffer`, which the host then maps or copies to `options->address`. NULL
 * options: the page right below, no kernel functions. Returns the bytes written, fastpath_image_size(). Nothing is
 * read at the addresses.
 */
int fastpath_instantiate(const fastpath_image *image, const struct fastpath_instance_options *options, void *buffer,
			 size_t buffer_size);

/* ---- the page ---- */

#define FASTPATH_PAGE_SIZE 4096

/* x86-64, guests of this kernel: the limit of the per-CPU segment holds CPU and node, verified against getcpu(2). */
#define FASTPATH_PAGE_CPU_SEGMENT 1u

/* The guest sees one CPU only: getcpu returns `cpu` and `node`. */
#define FASTPATH_PAGE_ONE_CPU 2u

struct fastpath_page_options {
	uint32_t size;
	uint32_t flags;       /* FASTPATH_PAGE_* */
	uint32_t hres_res_ns; /* clock_getres of REALTIME, MONOTONIC, MONOTONIC_RAW, BOOTTIME, TAI; 0: by system call */
	uint32_t coarse_res_ns; /* clock_getres of the COARSE clocks; 0: by system call */
	uint32_t cpu;           /* with FASTPATH_PAGE_ONE_CPU, else 0 */
	uint32_t node;          /* likewise */
};

/*
 * Makes an unseeded page of FASTPATH_PAGE_SIZE bytes of writable memory, aligned to 4096 bytes. The guest maps the
 * same memory read-only (a memfd with F_SEAL_FUTURE_WRITE, or any other shared mapping); only the publisher may
 * write it from here on. NULL options: resolutions and flags of this host's kernel, for guests that run as processes
 * of it.
 */
int fastpath_page_init(void *page, const struct fastpath_page_options *options);

/*
 * Reads what a guest would read from the page at a count of its counter. Returns 1 and stores seconds and
 * nanoseconds, or returns 0 if the guest would make the system call. The page may be mapped read-only here.
 */
int fastpath_page_read(const void *page, int32_t clock_id, uint64_t guest_cycles, uint64_t *sec, uint32_t *nsec);

/* A withdrawal of anchors from a page. */
struct fastpath_withdrawal {
	uint64_t boottime_ns; /* the host's CLOCK_BOOTTIME at the last sample; 0: unknown */
	int64_t ahead_ns;     /* how far the anchor was ahead of the host's MONOTONIC; or FASTPATH_AHEAD_UNKNOWN */
	uint32_t reason;      /* fastpath_reason_string */
	uint32_t reserved;
};
#define FASTPATH_AHEAD_UNKNOWN INT64_MIN
/* Number of withdrawals in a page's history. */
#define FASTPATH_WITHDRAWALS 8

/*
 * Stores the last withdrawals of the page's history, oldest first, at most `room`. Returns how many were stored.
 * `total`, unless NULL, becomes the number of withdrawals since the page was made: a host that has logged as many
 * has nothing to log. Works during any other call; the page may be mapped read-only here.
 */
int fastpath_page_withdrawals(const void *page, struct fastpath_withdrawal *withdrawals, uint32_t room,
			      uint64_t *total);

/* ---- the counter ---- */

#define FASTPATH_BELIEVED 0u
#define FASTPATH_NOT_INVARIANT 1u /* the CPU does not state one rate (x86: CPUID 8000_0007H, EDX bit 8) */
#define FASTPATH_NOT_READABLE 2u  /* this process may not read it (x86: prctl PR_GET_TSC) */
#define FASTPATH_WARP 3u          /* the counters of two CPUs disagree */
#define FASTPATH_COUNTER_TRAPS 4u /* reading it traps to the kernel (an erratum of some Arm CPUs) */
#define FASTPATH_NOT_COMPARED 5u  /* not invariant, and the CPUs' counters could not be compared either */

struct fastpath_verdict {
	uint32_t size;
	uint32_t distrust;     /* FASTPATH_BELIEVED, or why not */
	uint64_t warp_cycles;  /* FASTPATH_EXAMINE_CPUS: with FASTPATH_WARP, the least distance of two CPUs'
				* counters; else the largest possible distance of any two that were compared */
	uint32_t cpu_features; /* FASTPATH_CPU_* of this CPU */
	uint32_t cpus;         /* FASTPATH_EXAMINE_CPUS: CPUs that this process may use, else 0 */
	uint32_t cpus_tested;  /* FASTPATH_EXAMINE_CPUS: CPUs that took part in the comparison, else 0 */
	uint32_t reserved;
};

/* Compares the CPUs' counters: starts a thread for each, allocates, and takes half a millisecond, 20 ms on a busy
 * host. */
#define FASTPATH_EXAMINE_CPUS 1u
/* Believes a counter that is not invariant: the host vouches for its rate. All other requirements remain. Give it to
 * fastpath_publisher_init too: anchors then live for at most 40 ms, and the host should call fastpath_examine
 * regularly while it publishes, and withdraw permanently if the result is FASTPATH_WARP. */
#define FASTPATH_TRUST_COUNTER 2u

/* Stores whether the counter can be believed here, by the rules of `fastpath run`. Call it before anything else
 * reads the counter. Returns 0 or an error. */
int fastpath_examine(uint32_t flags, struct fastpath_verdict *verdict);
/* Returns the description of a verdict, for a log. Never NULL; static. */
const char *fastpath_distrust_string(uint32_t distrust);

/* ---- the publisher ---- */

/* Clock ids as Linux numbers them (include/uapi/linux/time.h), and the bit of each. */
#define FASTPATH_CLOCK_BIT(id) (1u << (id))
#define FASTPATH_CLOCKS_ALL                                                                                            \
	(FASTPATH_CLOCK_BIT(0) /* REALTIME */ | FASTPATH_CLOCK_BIT(1) /* MONOTONIC */ |                                \
	 FASTPATH_CLOCK_BIT(4) /* MONOTONIC_RAW */ | FASTPATH_CLOCK_BIT(7) /* BOOTTIME */ |                            \
	 FASTPATH_CLOCK_BIT(11) /* TAI */)

/* The publisher lives in the host's memory, of this size and alignment. */
#define FASTPATH_PUBLISHER_SIZE 24576
#define FASTPATH_PUBLISHER_ALIGN 64
typedef struct fastpath_publisher {
	FASTPATH_ALIGNAS(FASTPATH_PUBLISHER_ALIGN) unsigned char opaque[FASTPATH_PUBLISHER_SIZE];
} fastpath_publisher;

/* Refreshes come when the guest made a system call (fastpath_trapped) and not by a timer: anchors live for just
 * below a second. */
#define FASTPATH_ON_DEMAND 1u

/*
 * The host's functions to read its counter and its clocks. fastpath_publish, fastpath_publish_step and
 * fastpath_state_of call both (fastpath_trapped calls the counter), in their own thread or signal handler; they must
 * not call the library.
 */
typedef uint64_t (*fastpath_read_counter_fn)(void *context);
/* Returns 0 and stores nanoseconds since the clock's epoch; any other result means that there is no such clock. */
typedef int (*fastpath_read_clock_fn)(void *context, int32_t clock_id, uint64_t *time_ns);

/*
 * guest count = ((host count * multiplier) >> fraction_bits) + offset, in 128 bits, then modulo 2^64.
 *
 * - Same counter in guest and host: multiplier 0 (means 1), fraction_bits 0, offset 0.
 * - KVM on Intel: multiplier is the VMCS's TSC multiplier, fraction_bits 48, offset the VMCS's TSC offset.
 * - KVM on AMD: multiplier is MSR_AMD64_TSC_RATIO, fraction_bits 32, offset the VMCB's TSC offset.
 * - KVM on AArch64: offset is -CNTVOFF_EL2, counted from CNTPCT; from CNTVCT, the difference of the two CNTVOFFs.
 * - A host that samples in guest counts: as the first, with `read_counter` returning guest counts.
 */
struct fastpath_publisher_options {
	uint32_t size;
	uint32_t flags;  /* FASTPATH_ON_DEMAND, FASTPATH_TRUST_COUNTER */
	uint32_t clocks; /* FASTPATH_CLOCK_BIT of each clock to answer; 0: FASTPATH_CLOCKS_ALL */
	uint32_t fraction_bits;
	uint64_t multiplier;
	uint64_t offset;
	fastpath_read_counter_fn read_counter; /* NULL: the CPU's counter, in order */
	fastpath_read_clock_fn read_clock;     /* NULL: clock_gettime(2) */
	void *context;
};

/*
 * Makes a publisher for a page that fastpath_page_init made; page and context must outlive it. An anchor on the page
 * (a former publisher's) is withdrawn: a host that changes the counter's relation, migrates the guest or forks
 * starts a new publisher. There is nothing to free. NULL options: this host's clocks for a guest that reads this
 * host's counter.
 */
int fastpath_publisher_init(fastpath_publisher *publisher, void *page,
			    const struct fastpath_publisher_options *options);

/* A clock read between two reads of the counter. */
struct fastpath_bracket {
	uint64_t before_cycles; /* host counts */
	uint64_t time_ns;
	uint64_t after_cycles;
};

/* All clocks, each the tightest of a few brackets, taken within a few microseconds. MONOTONIC and REALTIME are
 * required. Fill in RAW and BOOTTIME where they exist, even if they are not served: they distinguish a slew and a
 * suspend from a broken counter. */
struct fastpath_sample {
	uint32_t size;
	uint32_t clocks; /* FASTPATH_CLOCK_BIT of each that is filled in */
	struct fastpath_bracket monotonic, realtime, monotonic_raw, boottime, tai;
};

#define FASTPATH_WAIT 0      /* nothing to publish yet: anchors in force stay in force. Call again in next_window_ns. */
#define FASTPATH_PUBLISHED 1 /* new anchors are on the page */
#define FASTPATH_WITHDREW                                                                                              \
	2 /* the counter or the clocks misbehaved: see fastpath_state.withdrawn_reason. Continue to publish:           \
	     when they have behaved for long enough, anchors come again. */
#define FASTPATH_MISSED                                                                                                \
	3 /* the moment passed before the anchor could be published, or the anchor in force has only just begun.       \
	     Anchors in force stay in force. Take another sample. */

/*
 * Takes one sample, or the host's, and carries out its result. Refreshes may come at any, irregular times: a sample
 * that follows the last one much sooner than `next_window_ns` changes nothing (FASTPATH_WAIT). A sample must never
 * depend on what the guest says: on its registers, its memory, or its answers.
 */
int fastpath_publish(fastpath_publisher *publisher, const struct fastpath_sample *sample);
/*
 * Does the same after CLOCK_REALTIME was set (timerfd_create(2), TFD_TIMER_CANCEL_ON_SET): REALTIME and TAI follow
 * at once, and the other clocks are not affected. Without this call a step is noticed at the next refresh.
 */
int fastpath_publish_step(fastpath_publisher *publisher, const struct fastpath_sample *sample);

/* The first reason that fastpath_withdraw accepts; lower ones are the library's. */
#define FASTPATH_REASON_HOST 0x10000u

/*
 * Takes all clocks off the page: from now on the guest makes system calls, until the next FASTPATH_PUBLISHED. The
 * known rate is kept, and no clock will show less than it last did. Returns 0.
 */
int fastpath_withdraw(fastpath_publisher *publisher, uint32_t reason);
/* Returns the description of a withdrawal's reason, for a log. Never NULL; static. */
const char *fastpath_reason_string(uint32_t reason);

struct fastpath_trap {
	uint32_t size;
	int32_t clock_id; /* the guest's clock; gettimeofday and time: 0, CLOCK_REALTIME; getcpu, clock_getres: -1 */
	const fastpath_image *image; /* of the guest's instance */
	uint64_t image_address;      /* address of the image in the guest */
	uint64_t pc;          /* the guest's program counter, behind the system-call instruction (as ptrace shows it) */
	uint64_t answered_ns; /* the answer of the host's own implementation, since the clock's epoch; 0: unknown */
};

#define FASTPATH_LEAVE_ALONE                                                                                           \
	0                  /* not from the image, not a served clock, too soon for a sample to help, or all is well */
#define FASTPATH_SEED 1    /* the page has no anchor: fastpath_publish */
#define FASTPATH_REFRESH 2 /* its anchor is too old, or more than 100 ms from `answered_ns`: fastpath_publish */

/*
 * Returns what to do about a system call that the guest just made. Costs a read of the counter, and one of MONOTONIC
 * where the page does not answer; changes nothing. Nothing that the guest controls (program counter, clock id)
 * reaches an anchor: at worst it makes the host take a sample of its own, no sooner than next_window_ns after the
 * last, or a millisecond where `answered_ns` is far off.
 */
int fastpath_trapped(const fastpath_publisher *publisher, const struct fastpath_trap *trap);

struct fastpath_state {
	uint32_t size;
	uint32_t clocks;           /* FASTPATH_CLOCK_BIT of each that the page answers at this moment */
	uint32_t withdrawn_reason; /* 0: not withdrawn */
	uint32_t seeded;           /* 1: the page has, or had, an anchor */
	uint64_t refreshes;        /* anchors published since the publisher was made */
	int64_t residual_ns;       /* how far the page was ahead of the host's MONOTONIC before the last refresh */
	int64_t age_ns;   /* of the newest anchor; below 0: it takes effect in a moment. Beyond cap_ns the guest makes
			   * system calls */
	uint64_t cap_ns;  /* max age of the anchor */
	int64_t drift_ns; /* the page's MONOTONIC less the host's, measured now; 0 where the page does not answer it */
	uint64_t next_window_ns; /* from the last sample to the next */
	double ns_per_cycle;     /* of the anchor, in guest counts */
};

/* Stores the state of the page, for a log. Returns 0. */
int fastpath_state_of(const fastpath_publisher *publisher, struct fastpath_state *state);

/* ---- answers beside the clocks ---- */

/*
 * Returns the image for guests whose host answers more calls than those for clocks: it has two functions more, and
 * reads two pages more, right below the clocks' page. NULL: no such ISA, an ISA that has none (it is made for x86-64
 * and AArch64), or this build left it out.
 *
 * __fastpath_syscall takes the place of a system call instruction of the guest, which jumps to it with the call's
 * registers and
 *   x86-64:   in rcx the address behind a `syscall` instruction, where the call returns to. It continues there if it
 * has answered, and at that instruction if not; r11 is free, as for a system call. AArch64:  on the stack x16 and x17
 * (stp x16, x17, [sp, #-16]!), in x16 the address to continue at if it has answered; if not, it continues 12 bytes
 * before. Both addresses must restore x16 and x17 first (ldp x16, x17, [sp], #16); the second then makes the call. It
 * leaves all other registers, the flags and the stack as the system call leaves them, and may be called in signal
 * handlers.
 *
 * __fastpath_answer is for hosts that translate or dispatch: see fastpath_answer().
 */
const fastpath_image *fastpath_image_for_hosts(int isa);

/*
 * The two pages are private, anonymous memory of the guest, of FASTPATH_PAGE_SIZE bytes each, zero at first, with
 * MADV_WIPEONFORK (Linux 4.14): a child then has no answers until its host writes them. The page of answers is
 * read-only in the guest, the ring is writable and better MADV_DONTDUMP. Never share them between processes, and wipe
 * both in a copy that is made in another way (a snapshot, a checkpoint).
 */
#define FASTPATH_ANSWERS_OFFSET (-4096) /* from the clocks' page */
#define FASTPATH_RING_OFFSET (-8192)
#define FASTPATH_ANSWERS_SIZE 640 /* bytes at the beginning of the page that are used */

/* A host's access to the page of answers of one guest process. One thread at a time writes one page. */
struct fastpath_answers {
	uint32_t size;
	uint32_t reserved;
	/* The page, if the host has it mapped writable (then `store` is NULL), else the host's own copy of its first
	 * FASTPATH_ANSWERS_SIZE bytes, zero at first; aligned to 8 bytes. */
	void *page;
	/* Stores a word in the guest, for example by process_vm_writev(2) or /proc/PID/mem, at this offset of the page.
	 * Returns 0, or else on failure. It is called in the order in which the words must change. */
	int (*store)(void *context, uint32_t offset, uint64_t word);
	void *context;
};

/* Identities. A tid is one for all threads: it is to be valid only while the guest has one thread. */
#define FASTPATH_PID 0
#define FASTPATH_TID 1
#define FASTPATH_PPID 2
#define FASTPATH_PGID 3
#define FASTPATH_SID 4
#define FASTPATH_UID 5
#define FASTPATH_EUID 6
#define FASTPATH_SUID 7
#define FASTPATH_FSUID 8
#define FASTPATH_GID 9
#define FASTPATH_EGID 10
#define FASTPATH_SGID 11
#define FASTPATH_FSGID 12
#define FASTPATH_IDENTITY_BIT(identity) (1u << (identity))
#define FASTPATH_CREDENTIALS 0x1fe0u /* the bits of FASTPATH_UID to FASTPATH_FSGID */

/* Makes an answer valid, after the call that changed it. Returns 0. */
int fastpath_answers_set(const struct fastpath_answers *answers, int identity, uint32_t value);
/* Makes answers invalid, before a call that changes one takes effect: the guest then makes these calls. `identities`
 * is a set of FASTPATH_IDENTITY_BIT. Returns 0. */
int fastpath_answers_invalidate(const struct fastpath_answers *answers, uint32_t identities);

/* Lets getrandom(2) and reads of marked descriptors be answered from the ring (1), or not (0, as at first). The image
 * fills the ring by the guest's own getrandom(2). Returns 0. */
int fastpath_answers_set_random(const struct fastpath_answers *answers, int is_on);

#define FASTPATH_ANSWERS_DESCRIPTORS 1024
/* Marks a descriptor that is open for reading on /dev/urandom. Returns 1, or 0 for one that cannot be marked
 * (FASTPATH_ANSWERS_DESCRIPTORS or above). */
int fastpath_answers_mark_urandom(const struct fastpath_answers *answers, uint32_t descriptor);
/* Takes the marks from `first` to `last`, before a call that closes or replaces them takes effect. Returns 0. */
int fastpath_answers_unmark(const struct fastpath_answers *answers, uint32_t first, uint32_t last);

/*
 * Voids what the image knows about the guest's memory. The image writes results only to the page of the stack pointer
 * and, while the tid is valid, to pages to which the kernel has written one for it; where a page is not known, the
 * guest makes the call, so that EFAULT stays EFAULT. Call this before a call that unmaps memory or protects it from
 * writing takes effect: munmap, mremap, mprotect, pkey_mprotect, shmdt, brk, and mmap and shmat at an address; and
 * again after it. Returns 0.
 */
int fastpath_answers_forget_memory(const struct fastpath_answers *answers);

/*
 * Answers a call of a guest in this process without making any: for a host that translates or dispatches system calls.
 * `function` is the address of __fastpath_answer in the guest's instance, `arguments` are the call's six, and
 * `guest_sp` is the guest's stack pointer, or 0. Returns 1 and stores the result (-errno on failure), or 0 if the host
 * has to make the call. A host that generates code can call the function itself: int (unsigned long number, const long
 * arguments[6], unsigned long guest_sp, long *result).
 */
int fastpath_answer(const void *function, unsigned long number, const long arguments[6], unsigned long guest_sp,
		    long *result);

/* ---- leading a guest's system calls to the image ---- */

/*
 * Analyses an ELF file of x86-64 or AArch64: finds the system call instructions that its functions reach, and proves
 * for each whether a jump can take its place without any other effect (docs/rescue.md). Returns an object to be freed,
 * with no sites for a file of another kind; NULL without a file.
 *
 * These functions allocate, and take up to some seconds for a large file: they are not for signal handlers.
 * fastpath_site_at and fastpath_site_patch are, and may run in several threads.
 */
typedef struct fastpath_sites fastpath_sites;
fastpath_sites *fastpath_sites_of(const void *elf, size_t size);
void fastpath_sites_free(fastpath_sites *sites);
size_t fastpath_sites_count(const fastpath_sites *sites);
/* Returns the lowest address that the file states, at the start of its page: the address where a guest has mapped that
 * page, less this, is the bias. */
uint64_t fastpath_sites_lowest(const fastpath_sites *sites);

struct fastpath_site {
	uint32_t size;
	uint32_t is_proven;   /* 1: fastpath_site_patch takes it */
	uint64_t address;     /* of the instruction, as the file states it */
	int32_t number;       /* of the call, if an instruction shortly before loads it; -1: unknown */
	uint32_t is_argument; /* 1: it is that of a function for any call, as libc's syscall() */
	char reason[96];      /* why it is not proven, terminated */
};

/* Describes a site, by its index in the order of addresses. Returns 0. */
int fastpath_site_at(const fastpath_sites *sites, size_t index, struct fastpath_site *site);

#define FASTPATH_PATCH_SIZE 16
#define FASTPATH_THUNK_SIZE 128

struct fastpath_patch {
	uint32_t size;
	uint32_t length;  /* bytes of `original` and `replacement`: a jump */
	uint64_t address; /* where they belong in the guest; they do not cross a page of 4096 bytes */
	uint8_t original[FASTPATH_PATCH_SIZE];
	uint8_t replacement[FASTPATH_PATCH_SIZE];
	uint32_t thunk_length; /* bytes of `thunk` */
	uint32_t reserved;
	uint8_t thunk[FASTPATH_THUNK_SIZE];
};

/*
 * Makes the patch that leads a site to `entry`, the address of __fastpath_syscall in the guest, by a thunk at
 * `thunk_address`, for a file that is mapped with `bias`. Returns 0, FASTPATH_EINVAL for a site that is not proven, or
 * FASTPATH_EPLACEMENT if a jump does not reach the thunk (2 GiB on x86-64, 128 MiB on AArch64). The entry may be
 * anywhere.
 *
 * The host compares `original` with the guest's memory (the file may have changed), writes the thunk, makes it
 * executable, and only then writes `replacement`. No thread may execute the replaced instructions meanwhile: write it
 * when the file has just been mapped, or stop all threads, none of them inside of these bytes.
 */
int fastpath_site_patch(const fastpath_sites *sites, size_t index, uint64_t bias, uint64_t thunk_address,
			uint64_t entry, struct fastpath_patch *patch);

#ifdef __cplusplus
}
#endif

#endif
