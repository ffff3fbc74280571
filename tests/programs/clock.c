/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* clock COUNT [CLOCK...]: reads each clock COUNT times; prints its name and ns per read. Exits 3 if one went backwards.
 */
#include "clocks.h"

#include <stdio.h>
#include <stdlib.h>

static int read_many(const struct clock_name *clock, long count) {
	long long start_ns = read_libc_ns(ID_MONOTONIC);
	long long last_ns = -1;

	for (long i = 0; i < count; i++) {
		long long now_ns = read_libc_ns(clock->id);

		if (now_ns < 0) {
			perror(clock->name);
			return 1;
		}
		if (now_ns < last_ns) {
			fprintf(stderr, "%s went backwards by %lld ns\n", clock->name, last_ns - now_ns);
			return 3;
		}
		last_ns = now_ns;
	}
	printf("%s %.1f\n", clock->name, (double)(read_libc_ns(ID_MONOTONIC) - start_ns) / (double)count);
	return 0;
}

static int usage(void) {
	fputs("usage: clock COUNT [CLOCK...]\nclocks:", stderr);
	for (size_t i = 0; i < CLOCK_NAMES; i++) {
		fprintf(stderr, " %s", clock_names[i].name);
	}
	fputc('\n', stderr);
	return 2;
}

int main(int argc, char **argv) {
	long count = argc > 1 ? atol(argv[1]) : 0;

	if (count <= 0) {
		return usage();
	}
	for (int i = 2; i < argc; i++) {
		if (!find_clock(argv[i])) {
			return usage();
		}
	}
	for (int i = 0; i < (argc > 2 ? argc - 2 : HRES_CLOCKS); i++) {
		int failed = read_many(argc > 2 ? find_clock(argv[i + 2]) : &clock_names[i], count);

		if (failed) {
			return failed;
		}
	}
	return 0;
}
