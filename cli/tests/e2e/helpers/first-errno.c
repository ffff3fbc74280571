/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* first-errno: prints what errno is when main begins. The standard says 0. */
#include <errno.h>
#include <stdio.h>

int main(void) {
	printf("%d\n", errno);
	return 0;
}
