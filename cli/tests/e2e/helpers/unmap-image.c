/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* unmap-image: unmaps the whole mapping that holds the vDSO, as Valgrind does, makes the calls that fastpath redirects,
 * and executes another program. */
#include <elf.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int main(void) {
	const unsigned long vdso = getauxval(AT_SYSINFO_EHDR);
	FILE *maps = fopen("/proc/self/maps", "r");
	unsigned long start = 0, end = 0;
	struct timespec now = {0, 0};
	char line[512];

	while (maps && fgets(line, sizeof(line), maps))
		if (sscanf(line, "%lx-%lx", &start, &end) == 2 && vdso >= start && vdso < end)
			break;
	if (vdso < start || vdso >= end || munmap((void *)start, end - start))
		return 2;
	if (unshare(0) || setns(-1, CLONE_NEWUTS) != -1 || errno != EBADF)
		return 3;
	/* Rescued calls, where they are. */
	if (syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now) || !now.tv_sec)
		return 4;
	execl("/bin/echo", "echo", "executed", NULL);
	return 5;
}
