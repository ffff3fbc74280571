/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* no-new-code CMD [ARGS]: CMD under PR_SET_MDWE: memory that was writable cannot become executable. Exits with 125 if
 * the kernel does not have it. */
#include <sys/prctl.h>
#include <unistd.h>

/* Linux 6.3 */
enum { SET_MDWE = 65, REFUSE_EXEC_GAIN = 1 };

int main(int argc, char **argv) {
	if (argc < 2 || prctl(SET_MDWE, REFUSE_EXEC_GAIN, 0, 0, 0))
		return 125;
	execvp(argv[1], argv + 1);
	return 126;
}
