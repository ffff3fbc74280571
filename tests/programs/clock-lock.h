/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The lock of the machine's clock: exclusive for tests that set it, shared for those that judge reads by a kernel that
 * is not slewed. So tests of two checkouts can run beside each other.
 *
 * It is held until the process and the children that it has forked have ended. Who waits to set the clock holds the
 * gate, so that others who come later do not keep it waiting forever.
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

/* An open lock; -1 without one. Only root sets clocks, so the lock is root's, and nobody else can hold it. */
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

/* LOCK_EX or LOCK_SH. -1 if there is no lock: an ordinary user cannot set the clock, and judges without. */
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
