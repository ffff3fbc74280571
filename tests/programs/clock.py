#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""clock.py COUNT [CLOCK...]: reads each clock COUNT times; prints its name and ns per read. Exits 3 if one went backwards."""

import sys
import time

# By number, because Python has CLOCK_TAI only since 3.9 and CLOCK_BOOTTIME since 3.7.
CLOCKS = {"REALTIME": 0, "MONOTONIC": 1, "MONOTONIC_RAW": 4, "BOOTTIME": 7, "TAI": 11}


def read_many(name, count):
    clock, read = CLOCKS[name], time.clock_gettime_ns
    start_ns = time.monotonic_ns()
    last_ns = 0
    for _ in range(count):
        now_ns = read(clock)
        if now_ns < last_ns:
            print(f"{name} went backwards by {last_ns - now_ns} ns", file=sys.stderr)
            sys.exit(3)
        last_ns = now_ns
    print(f"{name} {(time.monotonic_ns() - start_ns) / count:.1f}")


def main(args):
    names = args[1:] or list(CLOCKS)
    if not args or not args[0].isdecimal() or int(args[0]) == 0 or not CLOCKS.keys() >= set(names):
        print("usage: clock.py COUNT [CLOCK...]\nclocks:", *CLOCKS, file=sys.stderr)
        return 2
    for name in names:
        read_many(name, int(args[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
