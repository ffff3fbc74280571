# SPDX-License-Identifier: Apache-2.0 OR MIT
"""loop.py COUNT [--wait]: what loop.c does, in Python."""

import sys
import time

PR_SET_PTRACER, PR_SET_PTRACER_ANY = 0x59616D61, -1


def main(args):
    count = int(args[0])
    if args[1:] == ["--wait"]:
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PTRACER, ctypes.c_long(PR_SET_PTRACER_ANY), 0, 0, 0)
        print("ready", flush=True)
        sys.stdin.readline()
    read, clock = time.clock_gettime_ns, time.CLOCK_MONOTONIC
    first_ns = read(clock)
    for _ in range(count - 1):
        last_ns = read(clock)
    print(f"{(last_ns - first_ns) / (count - 1):.2f}")


main(sys.argv[1:])
