/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The parts of the experiment. Each prints a table and returns an exit status. */
#ifndef CPU_TIME_H
#define CPU_TIME_H

#include "clock.h"

#include <stddef.h>

int cost(int argc, char **argv);
int error(int argc, char **argv);
int switches(int argc, char **argv);
int threads(int argc, char **argv);
int limits(int argc, char **argv);
int life(int argc, char **argv);

uint64_t wall_ns(void);
/* Sorts the values. */
double quantile(double *values, size_t count, double fraction);
_Noreturn void die(const char *what);

#endif
