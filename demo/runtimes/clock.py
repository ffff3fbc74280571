# SPDX-License-Identifier: Apache-2.0 OR MIT
"""For each line of input that names a call, prints the nanoseconds that it takes."""

import sys
import time

READS = 5_000
CALLS = {"time.monotonic()": time.monotonic, "time.time()": time.time}

for line in sys.stdin:
    read = CALLS[line.strip()]
    begun = time.perf_counter_ns()
    for _ in range(READS):
        read()
    print((time.perf_counter_ns() - begun) / READS, flush=True)
