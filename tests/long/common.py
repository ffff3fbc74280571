# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Definitions that the parts share."""

import os
import pathlib
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
PROGRAMS = pathlib.Path(os.environ.get("FASTPATH_PROGRAMS", TARGET / "programs"))
# Longer than any operation takes on a busy machine.
TIMEOUT_S = 60
# Variable that identifies the processes of a part; a helper keeps the environment of the process that started it.
MARK = "FASTPATH_TEST_MARK"


class Failed(Exception):
    """A promise was broken."""


class Skipped(Exception):
    """A part needs something that is missing here."""


def wait_until(what, condition, timeout_s=TIMEOUT_S):
    """Returns the result of `condition` as soon as it is true."""
    end = time.monotonic() + timeout_s
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > end:
            raise Failed(f"this did not happen within {timeout_s} s: {what}")
        time.sleep(0.002)


def read(path):
    """Returns a file of /proc, or nothing if the process has ended."""
    try:
        return pathlib.Path(path).read_bytes()
    except OSError:
        return b""


def processes():
    """Returns the IDs of all processes that have not ended, lowest first."""
    pids = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
    return [pid for pid in pids if read(f"/proc/{pid}/cmdline")]


def helpers(mark):
    """Returns the helpers that were started under this mark."""
    entry = f"{MARK}={mark}".encode()
    named = [pid for pid in processes() if read(f"/proc/{pid}/cmdline").startswith(b"fastpath-publisher")]
    return [pid for pid in named if entry in read(f"/proc/{pid}/environ").split(b"\0")]


def is_served(pid):
    """Returns whether a process maps a page of fastpath."""
    return b"/memfd:fastpath-page" in read(f"/proc/{pid}/maps")
