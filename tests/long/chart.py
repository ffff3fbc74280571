# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Installs the Helm chart into real kube-apiservers, which tests/apiserver/run builds first."""

import subprocess

from common import ROOT, Failed, Skipped


def run(_options):
    program = subprocess.Popen([ROOT / "tests" / "apiserver" / "run"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    lines = []
    for line in program.stdout:
        lines.append(line.rstrip())
        print(lines[-1], flush=True)
    counts = {word: sum(line.startswith(f"{word}: ") for line in lines) for word in ("ok", "FAILED", "SKIPPED")}
    if program.wait() != 0 or counts["FAILED"]:
        raise Failed(f"{counts['FAILED']} of {counts['ok'] + counts['FAILED']} checks failed, exit status {program.returncode}")
    if not counts["ok"]:
        raise Skipped(f"{counts['SKIPPED']} servers could not be built or started")
    return f"{counts['ok']} checks"
