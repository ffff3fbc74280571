/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "complain.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

int complain(const char *what, const char *why) {
	fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, what, why);
	return -1;
}

int complain_errno(const char *what) { return complain(what, strerror(errno)); }
