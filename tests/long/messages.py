# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Compares the messages that doctor explains with the images of several kernels; make test-all does it with one."""

import os
import subprocess

from common import ROOT, Failed, Skipped

RELEASES = ("bullseye", "bookworm", "trixie", "sid")


def run(_options):
    test = ["cargo", "test", "--quiet", "--package", "fastpath-doctor", "--lib", "the_kernels_images", "--", "--nocapture"]
    environment = {**os.environ, "FASTPATH_KERNELS": " ".join(RELEASES)}
    ran = subprocess.run(test, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if ran.returncode:
        raise Failed(ran.stdout)
    skipped = ran.stdout.count("SKIPPED: ")
    if skipped == len(RELEASES):
        raise Skipped("no kernel is available")
    return f"{len(RELEASES) - skipped} kernels, {skipped} skipped"
