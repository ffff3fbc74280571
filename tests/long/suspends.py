# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Suspends, hibernates, stops and restores machines of the lab while the witness judges their clocks."""

import subprocess

from common import ROOT, Failed, Skipped


def run(_options):
    command = [ROOT / "lab" / "run", "asleep", "asleep-steered", "suspended", "hibernated", "restored", "stopped"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    print(done.stdout, flush=True)
    lines = done.stdout.splitlines()
    counts = {word: sum(line.startswith(f"{word}: ") for line in lines) for word in ("ok", "FAILED", "SKIPPED")}
    if done.returncode or counts["FAILED"]:
        raise Failed(f"{counts['FAILED']} of the lab's scenarios failed, exit status {done.returncode}")
    if not counts["ok"]:
        raise Skipped("no machine of the lab could be started")
    return f"{counts['ok']} scenarios, {counts['SKIPPED']} skipped"
