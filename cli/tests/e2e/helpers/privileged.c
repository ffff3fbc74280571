/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* privileged: prints whether it is root, and whether any of fastpath's memory is mapped. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(void) {
	char line[512];
	int mapped = 0;
	FILE *maps = fopen("/proc/self/maps", "r");

	while (maps && fgets(line, sizeof line, maps))
		mapped |= strstr(line, "memfd:fastpath") != NULL;
	printf("%s %s\n", geteuid() == 0 ? "root" : "user", !maps ? "unknown" : mapped ? "served" : "untouched");
	return 0;
}
