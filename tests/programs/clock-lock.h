/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The lock of the machine's clock: exclusive for tests that set it, shared for those that judge reads by a kernel whose
 * clock is not slewed. So tests of two checkouts can run side by side.
 *
 * It is held until the process and its forked children have ended. A process that waits to set the clock holds the
 * gate, so that later ones cannot make it wait forever.
 */
#ifndef CLOCK_LOCK_H
#define CLOCK_LOCK_H

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define CLOCK_LOCK "/run/lock/fastpath-clock"
#define CLOCK_GATE "/run/lock/fastpath-clock-gate"

/* Opens a lock; returns -1 without one. Only root sets clocks, so the lock belongs to root, and no other user can
 * hold it. */
static inline int open_clock_lock(const char *path) {
	struct stat status;
	int file = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);

	if (file < 0 && errno == ENOENT && geteuid() == 0) {
		mkdir("/run/lock", 01777);
		file = open(path, O_RDONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
	}
	if (file >= 0 && (fstat(file, &status) || status.st_uid != 0)) {
		close(file);
		return -1;
	}
	return file;
}

static inline void wait_for_lock(int file, int operation) {
	while (flock(file, operation) && errno == EINTR) {
	}
}

/* Takes the lock with LOCK_EX or LOCK_SH. Returns -1 if there is none: an unprivileged user cannot set the clock,
 * and judges without the lock. */
static inline int lock_machine_clock(int operation) {
	int gate = open_clock_lock(CLOCK_GATE);
	int file = open_clock_lock(CLOCK_LOCK);

	if (gate >= 0) {
		wait_for_lock(gate, operation);
	}
	if (file >= 0) {
		wait_for_lock(file, operation);
	}
	if (gate >= 0) {
		close(gate);
	}
	return file;
}

#endif
