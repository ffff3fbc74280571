# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Definitions that the parts share."""

import os
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
PROGRAMS = pathlib.Path(os.environ.get("FASTPATH_PROGRAMS", TARGET / "programs"))
# Longer than any operation takes on a busy machine.
TIMEOUT_S = 60


class Failed(Exception):
    """A promise was broken."""


class Skipped(Exception):
    """A part needs something that is missing here."""


def read(path):
    """Returns a file of /proc, or nothing if the process has ended."""
    try:
        return pathlib.Path(path).read_bytes()
    except OSError:
        return b""
