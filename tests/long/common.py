# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What the parts share."""

import os
import pathlib
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
PROGRAMS = pathlib.Path(os.environ.get("FASTPATH_PROGRAMS", TARGET / "programs"))
# Longer than anything takes on a machine that is busy with much else.
PATIENCE_S = 60
# The variable by which processes are told apart; a helper keeps the environment of the process that started it.
MARK = "FASTPATH_TEST_MARK"


class Failed(Exception):
    """Something that is promised was not so."""


class Skipped(Exception):
    """Something that a part needs is not here."""


def wait_until(what, condition, patience_s=PATIENCE_S):
    """Returns what `condition` returns as soon as that is true."""
    end = time.monotonic() + patience_s
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > end:
            raise Failed(f"this did not happen within {patience_s} s: {what}")
        time.sleep(0.002)


def read(path):
    """A file of /proc, or nothing if the process has ended."""
    try:
        return pathlib.Path(path).read_bytes()
    except OSError:
        return b""


def processes():
    """The numbers of all processes that have not ended, first the oldest."""
    pids = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
    return [pid for pid in pids if read(f"/proc/{pid}/cmdline")]


def helpers(mark):
    """The helpers that were started under this mark."""
    entry = f"{MARK}={mark}".encode()
    named = [pid for pid in processes() if read(f"/proc/{pid}/cmdline").startswith(b"fastpath-publisher")]
    return [pid for pid in named if entry in read(f"/proc/{pid}/environ").split(b"\0")]


def is_served(pid):
    """Whether a process maps a page of fastpath's."""
    return b"/memfd:fastpath-page" in read(f"/proc/{pid}/maps")
