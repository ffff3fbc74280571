/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* A library that seals the kernel's vDSO before main, as kernels with CONFIG_MSEAL_SYSTEM_MAPPINGS do. Ends the process
 * with 125 if there is no mseal(2). */
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

/* mseal(2), on every architecture; Linux 6.10. */
enum { NR_mseal = 462 };

__attribute__((constructor)) static void seal(void) {
	char line[256];
	FILE *maps = fopen("/proc/self/maps", "re");
	int refused = 0;

	while (maps && fgets(line, sizeof(line), maps)) {
		unsigned long start, end;

		if (strstr(line, "[vdso]") && sscanf(line, "%lx-%lx", &start, &end) == 2)
			refused |= syscall(NR_mseal, start, end - start, 0) != 0;
	}
	if (maps)
		fclose(maps);
	if (refused) {
		perror("mseal");
		_exit(125);
	}
}
