/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "tally.h"

#include <stdio.h>
#include <stdlib.h>

static const char *const relation_names[RELATIONS] = {
    [OURS_THEN_OURS] = "ours_then_ours",
    [KERNEL_THEN_OURS] = "kernel_then_ours",
    [OURS_THEN_KERNEL] = "ours_then_kernel",
    [TIMERFD] = "timerfd",
    [NANOSLEEP] = "clock_nanosleep",
    [FUTEX] = "futex",
    [PPOLL] = "ppoll",
    [COARSE] = "coarse",
    [TIME] = "time",
    [MTIME] = "mtime",
    [SET_SEEN] = "set_seen",
    [FOLLOWED] = "followed",
    [LEAP] = "leap",
};

static const char *const names[CLOCKS] = {"MONOTONIC", "MONOTONIC_RAW", "BOOTTIME", "REALTIME", "TAI"};

struct limit {
	long long ns;
	/* Share of the reads that may be off by more. */
	double tolerated;
};

struct limits {
	struct limit limit[LIMITS];
	int count;
};

static struct limits limits[RELATIONS];

long long limit_ns(enum relation relation) { return limits[relation].limit[0].ns; }

/* Returns at least 1: without limits, the first one is zero, so no read may be off. */
static int count_limits(enum relation relation) { return limits[relation].count ? limits[relation].count : 1; }

static int is_meant(const char *name, size_t length, enum relation relation) {
	int is_timer = relation >= TIMERFD && relation <= PPOLL;
	const char *group = relation == OURS_THEN_OURS ? "" : is_timer ? "timers" : "reads";

	return (length == strlen(group) && strncmp(name, group, length) == 0) ||
	       (length == 3 && strncmp(name, "all", length) == 0 && relation != OURS_THEN_OURS) ||
	       (length == strlen(relation_names[relation]) && strncmp(name, relation_names[relation], length) == 0);
}

int add_limit(const char *words) {
	const char *value = strchr(words, '=');
	size_t length = value ? (size_t)(value - words) : 0;
	int added = 0;
	char *end;
	struct limit limit = {0};

	if (!value) {
		return 0;
	}
	limit.ns = strtoll(value + 1, &end, 10);
	if (*end == '@') {
		limit.tolerated = 1 - strtod(end + 1, &end) / 100;
	}
	if (*end || end == value + 1) {
		return 0;
	}
	for (int r = 0; r < RELATIONS; r++) {
		if (!is_meant(words, length, r)) {
			continue;
		}
		if (limits[r].count == LIMITS) {
			return 0;
		}
		limits[r].limit[limits[r].count++] = limit;
		added = 1;
	}
	return added;
}

static int bucket(long long off_ns) {
	int power;

	if (off_ns < PARTS) {
		return off_ns < 0 ? 0 : (int)off_ns;
	}
	power = 63 - __builtin_clzll((unsigned long long)off_ns);
	return (power - 2) * PARTS + (int)(off_ns >> (power - 3)) % PARTS;
}

/* Returns the greatest value of a bucket. */
static long long bucket_end(int index) {
	int power = index / PARTS + 2;

	return index < PARTS ? index : ((long long)(PARTS + index % PARTS + 1) << (power - 3)) - 1;
}

void note(struct tallies *tallies, enum relation relation, int clock, long long off_ns) {
	struct tally *tally = &tallies->of[relation][clock];

	tally->reads++;
	tally->histogram[bucket(off_ns)]++;
	if (off_ns > tally->worst_ns) {
		tally->worst_ns = off_ns;
	}
	for (int i = 0; i < count_limits(relation); i++) {
		tally->beyond[i] += off_ns > limits[relation].limit[i].ns;
	}
}

static void add_tally(struct tally *sum, const struct tally *part) {
	sum->reads += part->reads;
	for (int i = 0; i < LIMITS; i++) {
		sum->beyond[i] += part->beyond[i];
	}
	if (part->worst_ns > sum->worst_ns) {
		sum->worst_ns = part->worst_ns;
	}
	for (int i = 0; i < BITS * PARTS; i++) {
		sum->histogram[i] += part->histogram[i];
	}
}

void add_tallies(struct tallies *sum, const struct tallies *part) {
	for (int r = 0; r < RELATIONS; r++) {
		for (int c = 0; c < CLOCKS; c++) {
			add_tally(&sum->of[r][c], &part->of[r][c]);
		}
	}
}

/* Returns the least value that so large a share of the reads does not exceed. */
static long long percentile(const struct tally *tally, double share) {
	unsigned long long below = 0;

	for (int i = 0; i < BITS * PARTS; i++) {
		below += tally->histogram[i];
		if ((double)below >= share * (double)tally->reads) {
			return bucket_end(i) < tally->worst_ns ? bucket_end(i) : tally->worst_ns;
		}
	}
	return tally->worst_ns;
}

/* Returns the number of reads beyond each limit whose tolerance is exceeded. */
static unsigned long long count_violations(enum relation relation, const struct tally *tally) {
	unsigned long long violations = 0;

	for (int i = 0; i < count_limits(relation); i++) {
		if ((double)tally->beyond[i] > limits[relation].limit[i].tolerated * (double)tally->reads) {
			violations += tally->beyond[i];
		}
	}
	return violations;
}

static void print_tally(const struct tally *tally, unsigned long long violations) {
	printf("\"reads\":%llu,\"violations\":%llu,\"worst_ns\":%lld,\"median_ns\":%lld,\"p99_9_ns\":%lld",
	       tally->reads, violations, tally->worst_ns, percentile(tally, 0.5), percentile(tally, 0.999));
}

unsigned long long print_tallies(const struct tallies *tallies) {
	unsigned long long all_violations = 0;

	for (int r = 0; r < RELATIONS; r++) {
		static struct tally sum;
		unsigned long long violations = 0;

		memset(&sum, 0, sizeof(sum));
		for (int c = 0; c < CLOCKS; c++) {
			add_tally(&sum, &tallies->of[r][c]);
			violations += count_violations(r, &tallies->of[r][c]);
		}
		all_violations += violations;
		if (sum.reads == 0) {
			continue;
		}
		printf("\"%s\":{", relation_names[r]);
		print_tally(&sum, violations);
		for (int c = 0; c < CLOCKS; c++) {
			if (tallies->of[r][c].worst_ns > 0) {
				printf(",\"%s\":{", names[c]);
				print_tally(&tallies->of[r][c], count_violations(r, &tallies->of[r][c]));
				putchar('}');
			}
		}
		printf("},");
	}
	return all_violations;
}
