# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Definitions that the parts share."""

import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
PROGRAMS = pathlib.Path(os.environ.get("FASTPATH_PROGRAMS", TARGET / "programs"))
# Longer than any operation takes on a busy machine.
TIMEOUT_S = 60


class Failed(Exception):
    """A promise was broken."""


class Skipped(Exception):
    """A part needs something that is missing here."""


def checks(*command):
    """Runs a program that prints a line for each check. Returns its figures."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    print(done.stdout, flush=True)
    lines = done.stdout.splitlines()
    counts = {word: sum(line.startswith(f"{word}: ") for line in lines) for word in ("ok", "FAILED", "SKIPPED")}
    if done.returncode or counts["FAILED"]:
        raise Failed(f"{counts['FAILED']} of {counts['ok'] + counts['FAILED']} checks failed, exit status {done.returncode}")
    if not counts["ok"]:
        raise Skipped("none of its machines could be started")
    return f"{counts['ok']} checks, {counts['SKIPPED']} skipped"


def read(path):
    """Returns a file of /proc, or nothing if the process has ended."""
    try:
        return pathlib.Path(path).read_bytes()
    except OSError:
        return b""
