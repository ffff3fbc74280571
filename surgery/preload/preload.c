/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * libfastpath-preload.so: redirects the vDSO of the process that loads it to fastpath's image, by a plan of
 * fastpathd. It runs once, before main, while there is one thread. On any failure the process is as if the library had
 * not been loaded.
 *
 *     FASTPATH_SOCKET=PATH              the daemon's socket
 *     FASTPATH_PRELOAD_CLOCKS=CLOCKS    as --clocks of the command: auto (those whose path is slow), all, or a list
 *     FASTPATH_PRELOAD_TIMEOUT_MS=50    timeout of the daemon's answer
 *     FASTPATH_PRELOAD_VERBOSE=1        report on standard error what was done, or why nothing was
 */
#include <sched.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "calls.h"
#include "conversation.h"
#include "filters.h"
#include "floor.h"
#include "patches.h"
#include "region.h"
#include "status.h"
#include "text.h"
#include "vdso.h"

/* The C library's. Weak: without one of them, the library does nothing. */
#pragma weak getauxval
#pragma weak environ
#pragma weak __errno_location

/* linux/sched.h; older C libraries lack it. */
#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x80
#endif

#define ALL_CLOCKS                                                                                                     \
	(1u << CLOCK_REALTIME | 1u << CLOCK_MONOTONIC | 1u << CLOCK_MONOTONIC_RAW | 1u << CLOCK_BOOTTIME |             \
	 1u << CLOCK_TAI)

struct options {
	struct daemon daemon;
	uint32_t clocks;     /* a bit each; 0: those whose path is slow */
	const char *mistake; /* the error in them, or NULL */
	bool verbose;
};

static const char *variable(const char *name_and_sign) {
	for (char **entry = environ; entry && *entry; entry++) {
		const char *value = fp_after(*entry, name_and_sign);
		if (value)
			return value;
	}
	return NULL;
}

/* A daemon answers in well under a millisecond. One that hangs delays each program once. */
enum { TIMEOUT_MS = 50, MOST_TIMEOUT_MS = 60000 };

static uint32_t read_timeout(const char *text) {
	uint32_t ms = 0;

	for (; text && *text >= '0' && *text <= '9' && ms <= MOST_TIMEOUT_MS; text++)
		ms = ms * 10 + (uint32_t)(*text - '0');
	return !text || *text || !ms ? TIMEOUT_MS : ms < MOST_TIMEOUT_MS ? ms : MOST_TIMEOUT_MS;
}

static char plain(char letter) {
	return letter >= 'a' && letter <= 'z' ? (char)(letter - 'a' + 'A') : letter == '-' ? '_' : letter;
}

/* Returns the text after a word, which is given in capitals, in a text written by people; NULL if it does not begin
 * with the word. */
static const char *after_word(const char *text, const char *word) {
	for (; *word; text++, word++)
		if (plain(*text) != *word)
			return NULL;
	return text;
}

static const char *without_spaces(const char *text) {
	while (*text == ' ' || *text == '\t')
		text++;
	return text;
}

/* Returns whether the text is this word alone. */
static bool is_word(const char *text, const char *word) {
	const char *rest = after_word(without_spaces(text), word);

	return rest && !*without_spaces(rest);
}

/* Reads the first clock of a list. Returns the text after its name, or NULL. */
static const char *read_clock(const char *text, uint32_t *clock) {
	static const struct {
		char name[16];
		int id;
	} clocks[] = {
	    {"REALTIME", CLOCK_REALTIME},
	    {"MONOTONIC", CLOCK_MONOTONIC},
	    {"MONOTONIC_RAW", CLOCK_MONOTONIC_RAW},
	    {"BOOTTIME", CLOCK_BOOTTIME},
	    {"TAI", CLOCK_TAI},
	};
	const char *name = without_spaces(text);
	const char *bare = after_word(name, "CLOCK_");

	for (size_t i = 0; i < sizeof(clocks) / sizeof(*clocks); i++) {
		const char *rest = after_word(bare ? bare : name, clocks[i].name);
		rest = rest ? without_spaces(rest) : NULL;
		if (rest && (!*rest || *rest == ',')) {
			*clock = 1u << clocks[i].id;
			return rest;
		}
	}
	return NULL;
}

/* Reads the clocks as core/page/src/clocks.rs reads --clocks. Returns false if they are invalid. */
static bool read_clocks(const char *text, uint32_t *clocks) {
	*clocks = 0;
	if (!text || !*text || is_word(text, "AUTO"))
		return true;
	if (is_word(text, "ALL")) {
		*clocks = ALL_CLOCKS;
		return true;
	}
	for (;; text++) {
		uint32_t clock = 0;

		text = read_clock(text, &clock);
		if (!text)
			return false;
		*clocks |= clock;
		if (!*text)
			return true;
	}
}

static struct options read_options(void) {
	const char *socket = variable("FASTPATH_SOCKET=");
	const char *verbose = variable("FASTPATH_PRELOAD_VERBOSE=");
	uint32_t clocks;
	bool is_right = read_clocks(variable("FASTPATH_PRELOAD_CLOCKS="), &clocks);

	return (struct options){
	    .daemon = {.path = socket && *socket ? socket : FASTPATHD_SOCKET,
		       .timeout_ms = read_timeout(variable("FASTPATH_PRELOAD_TIMEOUT_MS=")),
		       .user = (uint32_t)getauxval(AT_EUID)},
	    .clocks = clocks,
	    .mistake =
		is_right ? NULL
			 : "FASTPATH_PRELOAD_CLOCKS names a clock that fastpath does not serve; valid: auto, all, or a "
			   "list of REALTIME, MONOTONIC, MONOTONIC_RAW, BOOTTIME, TAI",
	    .verbose = verbose && fp_same(verbose, "1"),
	};
}

/* The facts about this process that the redirection needs. */
struct process {
	struct options options;
	struct vdso vdso;
};

static bool counter_may_be_read(struct why *why) {
	int mode = PR_TSC_ENABLE;
	long error = fp_syscall6(FP_NR_prctl, PR_GET_TSC, (long)&mode, 0, 0, 0, 0);

	/* A kernel without PR_GET_TSC forbids nothing. */
	if (error && error != -EINVAL)
		return fp_because(why, "prctl(PR_GET_TSC)", error);
	return mode == PR_TSC_ENABLE || fp_because(why, "this process may not read the counter (PR_SET_TSC)", 0);
}

/* What time namespaces need: the page, and one of the patches, which is applied as long as the page is there. */
static struct {
	uintptr_t page;
	struct fastpathd_patch patch;
} served;

static bool put_in_force(const struct process *process, uintptr_t region, const struct prepared *prepared,
			 struct why *why) {
	struct patches patches;

	if (!fp_read_patches(prepared, &process->vdso, &patches, why) || !fp_fill_region(region, prepared, why) ||
	    !fp_apply_patches(&patches, &process->vdso, why))
		return false;
	served.patch = patches.patch[patches.count - 1];
	served.page = fp_page_in(region, &prepared->answer);
	return true;
}

/* Makes all changes to this process, or undoes them. */
static bool redirect(const void *with, struct why *why) {
	const struct process *process = with;
	struct prepared prepared;

	if (!counter_may_be_read(why))
		return false;
	uintptr_t region = fp_reserve_region(&process->vdso, why);
	if (!region)
		return false;
	const struct fastpathd_request request = {
	    .magic = FASTPATHD_MAGIC,
	    .version = FASTPATHD_VERSION,
	    .operation = FASTPATHD_PREPARE,
	    .clocks = process->options.clocks,
	    .machine = FP_MACHINE,
	    .vdso = process->vdso.base,
	    .region = region,
	};
	bool done = fp_prepare(&process->options.daemon, &request, &prepared, why);
	if (done) {
		done = put_in_force(process, region, &prepared, why);
		fp_let_go(&prepared);
	}
	if (!done)
		fp_give_up_region(region);
	return done;
}

static bool is_there(const char *path, struct why *why) {
	long fd = fp_syscall4(FP_NR_openat, AT_FDCWD, (long)path, O_PATH | O_CLOEXEC, 0);

	if (fp_failed(fd))
		return fp_because(why, "no daemon has its socket here", fd);
	fp_close((int)fd);
	return true;
}

/* The checks before any change only make system calls that the loader makes too. */
static bool serve(struct process *process, struct why *why) {
	struct status status;

	if (process->options.mistake)
		return fp_because(why, process->options.mistake, 0);
	if (!fp_vdso(getauxval(AT_SYSINFO_EHDR), getauxval(AT_PAGESZ), &process->vdso, why) ||
	    !is_there(process->options.daemon.path, why) || !fp_own_status(&status, why))
		return false;
	if (status.threads != 1)
		return fp_because(why, "it has threads already", 0);
	if (status.seccomp && !fp_filters_allow(&status, redirect, process, why))
		return false;
	return redirect(process, why);
}

__attribute__((constructor)) static void start(void) {
	if (!getauxval || !&environ || !__errno_location)
		return;
	int error = errno;
	struct process process = {.options = read_options()};
	struct why why = {.tried = NULL};
	if (!getauxval(AT_SECURE)) {
		bool done = serve(&process, &why);
		if (process.options.verbose)
			fp_report(done ? "served" : "not served", done ? NULL : &why);
	}
	errno = error;
}

/*
 * The two functions by which a process, or its children, enter another time namespace: the page would show them the
 * clocks of this one. As surgery/inject/hook/hook.c does, this replaces the page by an unseeded one after a call that
 * succeeded, so that every clock falls back to the kernel.
 */
static long call_from_here(long number, long first, long second, bool may_enter) {
	const struct fp_page *page =
	    may_enter && served.page && fp_is_applied(&served.patch) ? (const void *)served.page : NULL;

	/* Before: afterwards the kernel's clocks may be others. Unless there are threads, no read comes between. */
	if (page)
		fp_await_kernel(page, true);
	long result = fp_syscall4(number, first, second, 0, 0);
	if (page && !fp_failed(result))
		fp_map(served.page, FP_PAGE_SIZE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	if (!fp_failed(result))
		return result;
	if (__errno_location)
		errno = (int)-result;
	return -1;
}

__attribute__((visibility("default"))) int unshare(int flags) {
	return (int)call_from_here(FP_NR_unshare, flags, 0, flags & CLONE_NEWTIME);
}

__attribute__((visibility("default"))) int setns(int fd, int kind) {
	return (int)call_from_here(FP_NR_setns, fd, kind, !kind || kind & CLONE_NEWTIME);
}
