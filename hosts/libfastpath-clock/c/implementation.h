/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The functions of fastpath-clock.h. */
#include <errno.h>
#include <time.h>
#ifdef __linux__
#include <sys/prctl.h>
#include <sys/timex.h>

/* Returns PR_TSC_*, or a negative errno. A kernel without PR_GET_TSC forbids nothing. */
static int fp_clock_counter_mode(void) {
	int mode = PR_TSC_ENABLE;

	return prctl(PR_GET_TSC, &mode) && errno != EINVAL ? -errno : mode;
}
#endif

static uint64_t fp_clock_ask_kernel_for_ns(void) {
	struct timespec now = {0, 0};

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static int fp_clock_store_utc(struct fastpath_clock_utc *utc, uint64_t now_ns, uint64_t error_ns) {
	utc->earliest_ns = now_ns < error_ns ? 0 : now_ns - error_ns;
	utc->latest_ns = now_ns + error_ns;
	return 1;
}

static int fp_clock_ask_kernel_for_utc(struct fastpath_clock_utc *utc) {
#ifdef __linux__
	const int saved = errno;
	struct timex timex = {.modes = 0};
	const int state = adjtimex(&timex);
	const uint64_t unit_ns = timex.status & STA_NANO ? 1 : 1000;

	errno = saved;
	/* 16 s: NTP_PHASE_LIMIT in include/linux/timex.h */
	if (state >= 0 && !(timex.status & STA_UNSYNC) && timex.maxerror >= 0 && timex.maxerror < 16000000)
		return fp_clock_store_utc(
		    utc, (uint64_t)timex.time.tv_sec * 1000000000 + (uint64_t)timex.time.tv_usec * unit_ns,
		    /* And the growth in this second, which the kernel adds at its end. */
		    (uint64_t)timex.maxerror * 1000 + 500000 + unit_ns);
#endif
	*utc = (struct fastpath_clock_utc){0, UINT64_MAX};
	return 0;
}

#ifndef FASTPATH_CLOCK_READS_PAGES

uint64_t fastpath_clock_read(void) { return fp_clock_ask_kernel_for_ns(); }

uint64_t fastpath_clock_read_unordered(void) { return fastpath_clock_read(); }

int fastpath_clock_now_bounded(struct fastpath_clock_utc *utc) { return fp_clock_ask_kernel_for_utc(utc); }

int fastpath_clock_open(unsigned flags) {
	(void)flags;
	return FASTPATH_CLOCK_KERNEL;
}

void fastpath_clock_evidence(struct fastpath_clock_evidence *evidence) {
	*evidence = (struct fastpath_clock_evidence){.tried = "programs of this kind are not served", .said = ""};
}

#else
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "conversation.c"
#include "latch.c"
#ifdef FASTPATH_CLOCK_PUBLISH
#include <fastpath.h>
#include <pthread.h>
#include <signal.h>
#endif

static struct fp_page fp_clock_no_page __attribute__((aligned(64)));
const struct fp_page *fp_clock_page = &fp_clock_no_page;

/* FASTPATH_CLOCK_*, and OPENING while a thread looks for a page. */
enum { FP_CLOCK_OPENING = -1 };
static int fp_clock_source;
static struct why fp_clock_why = {.tried = "fastpath_clock_open() was not called"};

FP_INLINE int fp_clock_ask_kernel(fp_clockid id, struct timespec *now) { return clock_gettime(id, now) ? -errno : 0; }

#define FP_TIMESPEC struct timespec
#define ASK_KERNEL fp_clock_ask_kernel
#define READ_SLOWLY fp_clock_gettime_slowly
static int fp_clock_gettime_slowly(fp_clockid id, struct timespec *now);
#include "clock_gettime.h"

uint64_t fp_clock_read_slowly(void) {
	const int saved = errno;
	struct timespec now = {0, 0};

	fp_clock_gettime_slowly(FP_CLOCK_MONOTONIC, &now);
	/* A later unordered read does not come before the kernel's. Without a page, counters may be forbidden. */
	if (fp_page_at(0) != &fp_clock_no_page)
		fp_read_counter();
	errno = saved;
	return (uint64_t)now.tv_sec * FP_NSEC_PER_SEC + (uint64_t)now.tv_nsec;
}

uint64_t fastpath_clock_read(void) { return fastpath_clock_now(); }

uint64_t fastpath_clock_read_unordered(void) { return fastpath_clock_now_unordered(); }

int fastpath_clock_now_bounded(struct fastpath_clock_utc *utc) {
	const struct fp_page *page = fp_page_at(0);
	const struct fp_place place = {&page->hres, FP_BASE_REALTIME};
	struct fp_time now = {0, 0};
	fp_u64 error_ns = 0;

	if (!fp_read_place(page, FP_CLOCK_REALTIME, place, &now, &error_ns) || !error_ns)
		return fp_clock_ask_kernel_for_utc(utc);
	return fp_clock_store_utc(utc, now.sec * FP_NSEC_PER_SEC + now.nsec, error_ns);
}

/* Returns whether reading the counter raises no SIGSEGV here. */
static bool fp_clock_may_read_counter(struct why *why) {
	const int mode = fp_clock_counter_mode();

	if (mode < 0)
		return fp_because(why, "prctl(PR_GET_TSC)", mode);
	return mode == PR_TSC_ENABLE || fp_because(why, "this process may not read the counter (PR_SET_TSC)", 0);
}

/* Maps a page or a mailbox of fastpathd's. An access beyond the end of a file that was shortened would kill the
 * process, so the file must be sealed against that. */
static bool fp_clock_map(void *at, int fd, int protection, struct why *why) {
	const int seals = fcntl(fd, F_GET_SEALS);

	if (seals < 0 || !(seals & F_SEAL_SHRINK) || lseek(fd, 0, SEEK_END) < FP_PAGE_SIZE)
		return fp_because(why, "the daemon's page or mailbox is too short, or not sealed", 0);
	if (mmap(at, FP_PAGE_SIZE, protection, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
		return fp_because(why, "the daemon's page or mailbox cannot be mapped", -errno);
	return true;
}

/* Returns whether the page has this reader's layout. */
static bool fp_clock_is_known(const struct fp_page *page) {
	return page->header.magic == FP_PAGE_MAGIC && page->header.abi == FP_PAGE_ABI;
}

/* Returns a page of fastpathd's, or NULL. The daemon keeps it as long as a process maps its mailbox. */
static const struct fp_page *fp_clock_request(struct why *why) {
	const char *path = secure_getenv("FASTPATH_SOCKET");
	const struct daemon daemon = {path && *path ? path : FASTPATHD_SOCKET, 2000, geteuid()};
	const struct fastpathd_request request = {
	    .magic = FASTPATHD_MAGIC,
	    .version = FASTPATHD_VERSION,
	    .operation = FASTPATHD_PAGE,
	    .flags = FASTPATHD_FOR_CLOCK,
	    .clocks = 1u << FP_CLOCK_MONOTONIC | 1u << FP_CLOCK_REALTIME,
	};
	const size_t size = FASTPATHD_MAILBOX_OFFSET + FP_PAGE_SIZE;
	struct prepared given;
	char *page;
	bool done;

	if (!fp_prepare(&daemon, &request, &given, why))
		return NULL;
	page = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	done = page != MAP_FAILED || fp_because(why, "memory for a page", -errno);
	done = done && fp_clock_map(page, given.fd[FP_PAGE_FD], PROT_READ, why);
	done = done && (fp_clock_is_known((void *)page) ||
			fp_because(why, "this fastpathd has another version than this library", 0));
	done =
	    done && fp_clock_map(page + FASTPATHD_MAILBOX_OFFSET, given.fd[FP_MAILBOX_FD], PROT_READ | PROT_WRITE, why);
	fp_let_go(&given);
	if (!done && page != MAP_FAILED)
		munmap(page, size);
	return done ? (void *)page : NULL;
}

#ifdef FASTPATH_CLOCK_PUBLISH
static fastpath_publisher fp_clock_publisher;

static void *fp_clock_publish(void *unused) {
	for (;;) {
		struct fastpath_state state = {.size = sizeof(state)};

		fastpath_publish(&fp_clock_publisher, NULL);
		fastpath_state_of(&fp_clock_publisher, &state);
		nanosleep(&(struct timespec){.tv_nsec = (long)state.next_window_ns}, NULL);
	}
	return unused;
}

/* The program's signals are not for this thread. */
static int fp_clock_start_thread(void) {
	pthread_t thread;
	sigset_t all, saved;
	int error;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &saved);
	error = pthread_create(&thread, NULL, fp_clock_publish, NULL);
	pthread_sigmask(SIG_SETMASK, &saved, NULL);
	if (!error)
		pthread_detach(thread);
	return error;
}

/* Makes a page that only its publisher can write, and that a child of this process has for reading only. */
static const struct fp_page *fp_clock_own_page(int fd, struct why *why) {
	const struct fastpath_publisher_options options = {.size = sizeof(options), .clocks = 1u << FP_CLOCK_MONOTONIC};
	void *written, *page;
	int error;

	if (ftruncate(fd, FP_PAGE_SIZE))
		return fp_because(why, "memory for a page", -errno), NULL;
	written = mmap(NULL, FP_PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	page = mmap(NULL, FP_PAGE_SIZE, PROT_READ, MAP_SHARED, fd, 0);
	if (written == MAP_FAILED || page == MAP_FAILED || madvise(written, FP_PAGE_SIZE, MADV_DONTFORK))
		return fp_because(why, "memory for a page", -errno), NULL;
	error = fastpath_page_init(written, NULL);
	if (!error)
		error = fastpath_publisher_init(&fp_clock_publisher, written, &options);
	if (error)
		return fp_because(why, fastpath_strerror(error), 0), NULL;
	error = fp_clock_start_thread();
	return error ? fp_because(why, "pthread_create", -error), NULL : page;
}

static const struct fp_page *fp_clock_publish_here(struct why *why) {
	struct fastpath_verdict verdict = {.size = sizeof(verdict)};
	const struct fp_page *page;
	int fd;

	if (fastpath_examine(FASTPATH_EXAMINE_CPUS, &verdict) || verdict.distrust)
		return fp_because(why, fastpath_distrust_string(verdict.distrust), 0), NULL;
	fd = memfd_create("fastpath-clock", MFD_CLOEXEC);
	if (fd < 0)
		return fp_because(why, "memfd_create", -errno), NULL;
	page = fp_clock_own_page(fd, why);
	close(fd);
	return page;
}
#endif

static int fp_clock_find(unsigned flags, const struct fp_page **page) {
	struct why why = {.tried = NULL};

	if (fp_clock_may_read_counter(&why) && (*page = fp_clock_request(&why)))
		return FASTPATH_CLOCK_DAEMON;
#ifdef FASTPATH_CLOCK_PUBLISH
	if (flags & FASTPATH_CLOCK_MAY_PUBLISH && (*page = fp_clock_publish_here(&why)))
		return FASTPATH_CLOCK_OWN;
#endif
	(void)flags;
	fp_clock_why = why;
	return FASTPATH_CLOCK_KERNEL;
}

int fastpath_clock_open(unsigned flags) {
	const int saved = errno;
	int source = FASTPATH_CLOCK_KERNEL;
	const struct fp_page *page = NULL;

	if (!__atomic_compare_exchange_n(&fp_clock_source, &source, FP_CLOCK_OPENING, 0, __ATOMIC_ACQUIRE,
					 __ATOMIC_ACQUIRE))
		return source == FP_CLOCK_OPENING ? FASTPATH_CLOCK_KERNEL : source;
	source = fp_clock_find(flags, &page);
	if (page)
		__atomic_store_n(&fp_clock_page, page, __ATOMIC_RELEASE);
	__atomic_store_n(&fp_clock_source, source, __ATOMIC_RELEASE);
	errno = saved;
	return source;
}

void fastpath_clock_evidence(struct fastpath_clock_evidence *evidence) {
	const int source = __atomic_load_n(&fp_clock_source, __ATOMIC_ACQUIRE);
	const struct fp_page *page = fp_page_at(0);
	const struct fp_stats *stats = &page->stats;
	struct fp_time now;

	*evidence = (struct fastpath_clock_evidence){
	    .source = source == FP_CLOCK_OPENING ? FASTPATH_CLOCK_KERNEL : source,
	    .is_used = fp_read_latch(FP_CLOCK_MONOTONIC, &now),
	    .reason = __atomic_load_n(&stats->withdrawn_reason, __ATOMIC_RELAXED),
	    .comparisons = __atomic_load_n(&stats->warp_tests, __ATOMIC_RELAXED),
	    .within_cycles = __atomic_load_n(&stats->warp_within_cycles, __ATOMIC_RELAXED),
	    .withdrawals = __atomic_load_n(&stats->withdrawals, __ATOMIC_RELAXED),
	    .is_not_invariant = __atomic_load_n(&stats->watch_flags, __ATOMIC_RELAXED) & 1,
	};
	if (source == FASTPATH_CLOCK_KERNEL) {
		evidence->error = (int)-fp_clock_why.error;
		evidence->tried = fp_clock_why.tried;
		evidence->said = fp_clock_why.said;
	}
}
#endif

#include "check.c"
