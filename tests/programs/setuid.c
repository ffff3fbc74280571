/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Prints the user that a setuid program runs as, and whether the kernel started it as such (AT_SECURE). */
#include <stdio.h>
#include <sys/auxv.h>
#include <unistd.h>

int main(void) {
	printf("uid %d euid %d secure %lu\n", (int)getuid(), (int)geteuid(), getauxval(AT_SECURE));
	return 0;
}
