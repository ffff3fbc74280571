/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* vfork: a child in its memory says `child` and stays until the end of the input; then both end. */
#include <sys/wait.h>
#include <unistd.h>

int main(void) {
	char byte;
	int status;
	pid_t child = vfork();

	if (child == 0) {
		write(1, "child\n", 6);
		while (read(0, &byte, 1) > 0) {
		}
		_exit(0);
	}
	return waitpid(child, &status, 0) != child || status != 0;
}
