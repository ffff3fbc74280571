# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Runs the test of the Helm chart's settings on a kernel with AppArmor, which make test leaves out."""

import subprocess

from common import ROOT, Failed, Skipped


def run(_options):
    lines = []
    program = subprocess.Popen([ROOT / "tests" / "apparmor" / "run"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    for line in program.stdout:
        lines.append(line.rstrip())
        print(lines[-1], flush=True)
    status = program.wait()
    counts = {word: sum(line.startswith(f"{word}: ") for line in lines) for word in ("ok", "FAILED", "SKIPPED")}
    if status or counts["FAILED"]:
        raise Failed(f"{counts['FAILED']} of {counts['ok'] + counts['FAILED']} checks failed, exit status {status}")
    if not counts["ok"]:
        raise Skipped("a kernel with AppArmor could not be started")
    return f"{counts['ok']} checks, {counts['SKIPPED']} skipped"
