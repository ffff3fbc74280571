/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Changes to the machine's clock. The guardian restores it. */
#include "witness.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/timex.h>

static const long long second_ns = 1000000000, hour_ns = 3600 * 1000000000LL, day_ns = 24 * 3600 * 1000000000LL;

unsigned int leaps;
long stated_us;

/* Calls adjtimex by an instruction that no code intercepts in a served process, for which a call of libc's would wait
 * until the change is followed. */
static int adjtimex_unwatched(struct timex *timex) {
#ifdef __x86_64__
	long result;

	__asm__ volatile("nop\n\tsyscall" : "=a"(result) : "a"(SYS_adjtimex), "D"(timex) : "rcx", "r11", "memory");
	return (int)result;
#else
	return adjtimex(timex);
#endif
}

static void call_adjtimex(struct timex *timex, const char *what) {
	if (adjtimex_unwatched(timex) < 0) {
		fail(what);
	}
}

static void adjust(struct timex timex, const char *what) {
	struct timex state = {.modes = 0};

	call_adjtimex(&timex, what);
	if (stated_us) {
		call_adjtimex(&state, "adjtimex");
		state.modes = ADJ_STATUS | ADJ_MAXERROR;
		state.status &= ~STA_UNSYNC;
		state.maxerror = stated_us;
		call_adjtimex(&state, "adjtimex ADJ_MAXERROR");
	}
}

static struct timex offset_by(long long by_ns) {
	struct timex timex = {.modes = ADJ_SETOFFSET | ADJ_NANO};

	timex.time.tv_sec = by_ns / second_ns;
	timex.time.tv_usec = by_ns % second_ns;
	if (timex.time.tv_usec < 0) {
		timex.time.tv_sec--;
		timex.time.tv_usec += second_ns;
	}
	return timex;
}

static void step(long long by_ns) {
	begin_setting();
	adjust(offset_by(by_ns), "adjtimex ADJ_SETOFFSET");
	end_setting();
}

static unsigned int turn_none(unsigned int turn, struct tallies *tallies) {
	(void)turn;
	(void)tallies;
	return 100;
}

static unsigned int turn_steps(unsigned int turn, struct tallies *tallies) {
	static const long long ms[] = {1, -1, -2, 2};

	step(ms[turn % 4] * 1000000);
	end_following(tallies, FOLLOWED);
	return 50;
}

static unsigned int turn_hours(unsigned int turn, struct tallies *tallies) {
	static const int hours[] = {3, 0, 0, -3, 0, 0};
	static const int ms[] = {0, 1, -1, 0, -1, 1};

	step(hours[turn % 6] * hour_ns + ms[turn % 6] * 1000000LL);
	end_following(tallies, FOLLOWED);
	return 50;
}

static void set_by_clock_settime(long long to_ns, long long by_ns) {
	(void)by_ns;
	if (clock_settime(CLOCK_REALTIME, &(struct timespec){to_ns / second_ns, to_ns % second_ns})) {
		fail("clock_settime");
	}
}

static void set_by_settimeofday(long long to_ns, long long by_ns) {
	(void)by_ns;
	if (settimeofday(&(struct timeval){to_ns / second_ns, to_ns % second_ns / 1000}, NULL)) {
		fail("settimeofday");
	}
}

/* Checks a result of the two calls below against that of one that sets nothing. */
static void check_adjusted(const struct timex *timex, int state, const char *what) {
	if (state != adjtimex_unwatched(&(struct timex){0}) || timex->modes != (ADJ_SETOFFSET | ADJ_NANO)) {
		fail(what);
	}
}

static void set_by_adjtimex(long long to_ns, long long by_ns) {
	struct timex timex = offset_by(by_ns);

	(void)to_ns;
	check_adjusted(&timex, adjtimex(&timex), "adjtimex");
}

static void set_by_clock_adjtime(long long to_ns, long long by_ns) {
	struct timex timex = offset_by(by_ns);

	(void)to_ns;
	check_adjusted(&timex, clock_adjtime(CLOCK_REALTIME, &timex), "clock_adjtime");
}

static void set_tai(int seconds) {
	struct timex timex = {.modes = ADJ_TAI, .constant = seconds};

	if (adjtimex(&timex) < 0 || timex.tai != seconds) {
		fail("adjtimex ADJ_TAI");
	}
}

/* Sets the clock by the C library's functions, in a served process, which must see the new time. */
static unsigned int turn_settime(unsigned int turn, struct tallies *tallies) {
	static void (*const ways[])(long long, long long) = {set_by_clock_settime, set_by_settimeofday, set_by_adjtimex,
							     set_by_clock_adjtime};
	static const int ms[] = {2, -2, -1, 1};
	const unsigned int way = turn % 5;
	const long long by_ns = ms[turn / 5 % 4] * 1000000LL;
	const int clock = way == 4 ? TAI : REALTIME;
	long long before_ns, ours_ns, after_ns;

	begin_setting();
	before_ns = read_kernel_ns(REALTIME) + by_ns;
	if (way == 4) {
		set_tai(turn / 5 % 2 ? 0 : 37);
		before_ns = read_kernel_ns(TAI);
	} else {
		ways[way](before_ns, by_ns);
	}
	/* Ours first, so that it is the next action after setting the clock. */
	ours_ns = read_ours_ns(clock);
	after_ns = read_kernel_ns(clock);
	end_setting();
	/* settimeofday() sets microseconds. */
	before_ns -= way == 1 ? before_ns % 1000 : 0;
	note(tallies, SET_SEEN, clock,
	     before_ns - ours_ns > ours_ns - after_ns ? before_ns - ours_ns : ours_ns - after_ns);
	end_following(tallies, FOLLOWED);
	return 50;
}

static unsigned int turn_tai(unsigned int turn, struct tallies *tallies) {
	static const int seconds[] = {37, 0, 36, 37};

	begin_setting();
	adjust((struct timex){.modes = ADJ_TAI, .constant = seconds[turn % 4]}, "adjtimex ADJ_TAI");
	end_setting();
	end_following(tallies, FOLLOWED);
	return 50;
}

static unsigned int turn_frequency(unsigned int turn, struct tallies *tallies) {
	static const long ppm[] = {500, 0, -500, 0, 500, -500};

	(void)tallies;
	/* adjtimex(2): the frequency is in units of 2^-16 ppm. */
	adjust((struct timex){.modes = ADJ_FREQUENCY, .freq = ppm[turn % 6] * 65536}, "adjtimex ADJ_FREQUENCY");
	return 300;
}

/* BSD's adjtime(): slews by 500 ppm, from the next second of REALTIME on. */
static unsigned int turn_single(unsigned int turn, struct tallies *tallies) {
	static const long us[] = {100000, -100000, 0};

	(void)tallies;
	adjust((struct timex){.modes = ADJ_OFFSET_SINGLESHOT, .offset = us[turn % 3]},
	       "adjtimex ADJ_OFFSET_SINGLESHOT");
	return 1500;
}

/* 9167 is chrony's greatest slew. */
static unsigned int turn_tick(unsigned int turn, struct tallies *tallies) {
	static const long ticks[] = {9167, 10000, 10833, 10000, 9000, 11000, 10000, 10833, 9167, 10000};

	(void)tallies;
	adjust((struct timex){.modes = ADJ_TICK, .tick = ticks[turn % 10]}, "adjtimex ADJ_TICK");
	return 800;
}

static unsigned int turn_fast(unsigned int turn, struct tallies *tallies) {
	(void)tallies;
	adjust((struct timex){.modes = ADJ_TICK, .tick = turn % 2 ? 10000 : 10833}, "adjtimex ADJ_TICK");
	return 800;
}

static unsigned int turn_slow(unsigned int turn, struct tallies *tallies) {
	(void)tallies;
	adjust((struct timex){.modes = ADJ_TICK, .tick = turn % 2 ? 10000 : 9167}, "adjtimex ADJ_TICK");
	return 800;
}

/* Slews as systemd-timesyncd does: in each second of REALTIME by a share of the offset, an eighth with this
 * constant. */
static unsigned int turn_pll(unsigned int turn, struct tallies *tallies) {
	static const long ms[] = {400, -400, 100, -100};
	struct timex timex = {.modes = ADJ_STATUS | ADJ_NANO | ADJ_TIMECONST | ADJ_OFFSET, .status = STA_PLL};

	(void)tallies;
	timex.constant = 1;
	timex.offset = ms[turn % 4] * 1000000;
	adjust(timex, "adjtimex ADJ_OFFSET");
	return 2300;
}

static long long realtime_above_raw_ns(void) { return read_kernel_ns(REALTIME) - read_kernel_ns(MONOTONIC_RAW); }

/* Inserts or deletes a second at midnight, as a synchronized clock or not. */
static unsigned int turn_leap(unsigned int turn, struct tallies *tallies) {
	const int deletes = turn % 2, is_synchronized = turn / 2 % 2;
	const int status = (deletes ? STA_DEL : STA_INS) | (is_synchronized ? 0 : STA_UNSYNC);
	const long long half_ns = deletes ? second_ns / 2 : -second_ns / 2;
	long long before_ns, left_ns;
	int has_leapt;

	step(day_ns - read_kernel_ns(REALTIME) % day_ns - 3 * second_ns);
	/* With a greater error the kernel says that the clock is not synchronized. */
	adjust((struct timex){.modes = ADJ_STATUS | ADJ_MAXERROR, .status = status}, "adjtimex STA_INS, STA_DEL");
	end_following(tallies, FOLLOWED);
	before_ns = realtime_above_raw_ns();
	begin_setting();
	expect_setting();
	/* The kernel makes the leap at its next tick. */
	left_ns = read_kernel_ns(MONOTONIC_RAW) + 4 * second_ns;
	do {
		nanosleep(&(struct timespec){0, 1000000}, NULL);
		has_leapt = deletes ? realtime_above_raw_ns() > before_ns + half_ns
				    : realtime_above_raw_ns() < before_ns + half_ns;
	} while (!has_leapt && read_kernel_ns(MONOTONIC_RAW) < left_ns);
	end_following(tallies, LEAP);
	/* Ending a PLL makes the kernel ready for the next leap second at once. */
	adjust((struct timex){.modes = ADJ_STATUS, .status = STA_PLL}, "adjtimex ADJ_STATUS");
	adjust((struct timex){.modes = ADJ_STATUS, .status = 0}, "adjtimex ADJ_STATUS");
	leaps += (unsigned int)has_leapt;
	return 100;
}

/* Suspends or hibernates. */
static unsigned int sleep_by(const char *state, struct tallies *tallies) {
	begin_setting();
	write_word("/sys/power/state", state);
	end_setting();
	end_following(tallies, FOLLOWED);
	return 300;
}

/* Suspends up to the point at which the kernel's clocks stop, for a second
 * (Documentation/power/basic-pm-debugging.rst). The counter goes on. */
static unsigned int turn_asleep(unsigned int turn, struct tallies *tallies) {
	(void)turn;
	write_word("/sys/module/suspend/parameters/pm_test_delay", "1");
	write_word("/sys/power/pm_test", "core");
	return sleep_by("mem", tallies);
}

/* Hibernates up to that point, for five seconds, a fixed time. */
static unsigned int turn_hibernating(unsigned int turn, struct tallies *tallies) {
	(void)turn;
	write_word("/sys/power/pm_test", "core");
	return sleep_by("disk", tallies);
}

/* Hibernates, and switches the machine off. Its counter begins anew. */
static unsigned int turn_hibernated(unsigned int turn, struct tallies *tallies) {
	(void)turn;
	write_word("/sys/power/disk", "shutdown");
	return sleep_by("disk", tallies);
}

/* Makes the kernel's clocks run on another clocksource, in a machine of the lab: the last one stays. */
static unsigned int turn_clocksource(unsigned int turn, struct tallies *tallies) {
	static const char available[] = "/sys/devices/system/clocksource/clocksource0/available_clocksource";
	static const char current[] = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
	char names[256] = "", *all[8];
	unsigned int count = 0;
	int fd = open(available, O_RDONLY | O_CLOEXEC);

	(void)tallies;
	if (fd < 0 || read(fd, names, sizeof(names) - 1) <= 0) {
		fail(available);
	}
	close(fd);
	for (char *name = strtok(names, " \n"); name && count < 8; name = strtok(NULL, " \n")) {
		all[count++] = name;
	}
	write_word(current, all[turn % count]);
	return 1500;
}

enum { STEPPED = 1U << REALTIME | 1U << TAI };

static const struct upset upsets[] = {
    {"none", 0, 0, turn_none},
    {"steps", STEPPED, 0, turn_steps},
    {"hours", STEPPED, 0, turn_hours},
    {"settime", STEPPED, 0, turn_settime},
    {"tai", 1U << TAI, 0, turn_tai},
    {"frequency", 0, 0, turn_frequency},
    {"single", 0, 1, turn_single},
    {"tick", 0, 0, turn_tick},
    {"fast", 0, 0, turn_fast},
    {"slow", 0, 0, turn_slow},
    {"pll", 0, 1, turn_pll},
    {"leap", STEPPED, 0, turn_leap},
    {"asleep", STEPPED | 1U << BOOTTIME, 0, turn_asleep},
    {"hibernating", STEPPED | 1U << BOOTTIME, 0, turn_hibernating},
    {"hibernated", STEPPED | 1U << BOOTTIME, 0, turn_hibernated},
    {"clocksource", 0, 0, turn_clocksource},
};

const struct upset *find_upset(const char *name) {
	for (size_t i = 0; i < sizeof(upsets) / sizeof(upsets[0]); i++) {
		if (strcmp(upsets[i].name, name) == 0) {
			return &upsets[i];
		}
	}
	return NULL;
}
