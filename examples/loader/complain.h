/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Messages of a host, which begin with its name. */
#ifndef LOADER_COMPLAIN_H
#define LOADER_COMPLAIN_H

/* Prints on stderr what failed and why. Returns -1. */
int complain(const char *what, const char *why);
/* The same with the reason of errno. */
int complain_errno(const char *what);

#endif
