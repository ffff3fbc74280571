/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Times that the kernel returns in other ways: COARSE clocks, time(), the times of files. None may be later than a
 * read of ours that follows. */
#include "witness.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

/* Reads by the function of that name, or with -k by its system call. */
static long long read_by_call_ns(int id) {
	struct timeval tv = {0};

	if (!judges_kernel) {
		return read_libc_ns(id);
	}
	/* Some architectures have no system call for time(); this is equivalent. */
	if (id == ID_TIME) {
		return read_syscall_ns(ID_REALTIME_COARSE) / 1000000000 * 1000000000;
	}
	if (id == ID_GETTIMEOFDAY) {
		syscall(SYS_gettimeofday, &tv, NULL);
		return tv.tv_sec * 1000000000LL + tv.tv_usec * 1000LL;
	}
	return read_syscall_ns(id);
}

static void watch_coarse(struct tallies *tallies, int clock, int coarse_id, long long (*read_ns)(int)) {
	unsigned int epoch = epoch_of(clock);
	long long coarse_ns = read_ns(coarse_id);
	long long ours_ns = read_ours_ns(clock);

	if (is_settled(epoch) && epoch == epoch_of(clock)) {
		note(tallies, COARSE, clock, coarse_ns - ours_ns);
	}
}

static void watch_time(struct tallies *tallies) {
	unsigned int epoch = epoch_of(REALTIME);
	long long time_ns = read_by_call_ns(ID_TIME);
	long long day_ns = read_by_call_ns(ID_GETTIMEOFDAY);
	long long ours_ns = read_ours_ns(REALTIME);
	long long later_day_ns = read_by_call_ns(ID_GETTIMEOFDAY);

	if (is_settled(epoch) && epoch == epoch_of(REALTIME)) {
		note(tallies, TIME, REALTIME, time_ns - day_ns);
		note(tallies, TIME, REALTIME, time_ns - ours_ns);
		note(tallies, OURS_THEN_OURS, REALTIME, day_ns - ours_ns);
		/* gettimeofday has only microseconds. */
		note(tallies, OURS_THEN_OURS, REALTIME, ours_ns / 1000 * 1000 - later_day_ns);
	}
}

static void watch_mtime(struct tallies *tallies, int file) {
	unsigned int epoch = epoch_of(REALTIME);
	struct statx status;
	long long mtime_ns, ours_ns;

	if (pwrite(file, "x", 1, 0) != 1 || statx(file, "", AT_EMPTY_PATH, STATX_MTIME, &status)) {
		fail("a file's time");
	}
	mtime_ns = status.stx_mtime.tv_sec * 1000000000LL + status.stx_mtime.tv_nsec;
	ours_ns = read_ours_ns(REALTIME);
	if (is_settled(epoch) && epoch == epoch_of(REALTIME)) {
		note(tallies, MTIME, REALTIME, mtime_ns - ours_ns);
	}
}

void *watch_stamps(void *tallies) {
	/* In no file system that other processes see. */
	int file = memfd_create("witness", MFD_CLOEXEC);

	if (file < 0) {
		fail("a file");
	}
	while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
		watch_coarse(tallies, MONOTONIC, ID_MONOTONIC_COARSE, read_by_call_ns);
		watch_coarse(tallies, MONOTONIC, ID_MONOTONIC_COARSE, read_syscall_ns);
		watch_coarse(tallies, REALTIME, ID_REALTIME_COARSE, read_by_call_ns);
		watch_coarse(tallies, REALTIME, ID_REALTIME_COARSE, read_syscall_ns);
		watch_time(tallies);
		watch_mtime(tallies, file);
	}
	close(file);
	return NULL;
}
