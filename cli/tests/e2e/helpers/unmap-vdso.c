/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* unmap-vdso: unmaps its own vDSO, as a sandbox does before it starts a guest, prints `gone`, and waits. */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int main(void) {
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[512];

	while (maps && fgets(line, sizeof(line), maps)) {
		unsigned long start, end;

		if (!strstr(line, "[vdso]") || sscanf(line, "%lx-%lx", &start, &end) != 2) {
			continue;
		}
		if (munmap((void *)start, end - start)) {
			perror("munmap");
			return 125;
		}
	}
	write(1, "gone\n", 5);
	for (;;) {
		pause();
	}
}
