# SPDX-License-Identifier: Apache-2.0 OR MIT
"""profiled.py: prints a line, and reads a clock until it is killed."""

import time


def read_clocks():
    while True:
        time.monotonic()


print("ready", flush=True)
read_clocks()
