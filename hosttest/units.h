/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Random bytes that were handed out, in memory that all processes share, to find bytes that were handed out twice.
 *
 * A unit is 8 bytes. Those at every 16th position are kept, and those behind a byte whose lowest four bits are 0: so
 * a block that is handed out again is found at any position. That two of 10^7 units agree by chance has a probability
 * of 3 * 10^-6.
 */
#ifndef UNITS_H
#define UNITS_H

#include <stddef.h>

void units_create(unsigned long requests);
/* Keeps the bytes of one request. Small ones are collected first, for each thread. */
void units_keep(const unsigned char *bytes, size_t size);
/* Forgets what is collected, in a child: its parent has the same. */
void units_forget_collected(void);
/* Makes one picked request, and keeps what it yields if no thread has forked meanwhile. Returns -errno if it fails. */
long units_request(int urandom);
/* To be called in the child after each fork, also in handlers. */
void units_forked(void);
/* Counts units that were handed out twice as wrong. */
void units_compare(void);

#endif
