# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Runs the tests of the Helm chart that make test leaves out: real kube-apiservers, and a kernel with AppArmor."""

import subprocess

from common import ROOT, Failed, Skipped


TESTS = ["apiserver", "apparmor"]


def run(_options):
    lines, statuses = [], []
    for test in TESTS:
        program = subprocess.Popen([ROOT / "tests" / test / "run"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        for line in program.stdout:
            lines.append(line.rstrip())
            print(lines[-1], flush=True)
        statuses.append(program.wait())
    counts = {word: sum(line.startswith(f"{word}: ") for line in lines) for word in ("ok", "FAILED", "SKIPPED")}
    if any(statuses) or counts["FAILED"]:
        raise Failed(f"{counts['FAILED']} of {counts['ok'] + counts['FAILED']} checks failed, exit statuses {statuses}")
    if not counts["ok"]:
        raise Skipped("neither a kube-apiserver nor a kernel with AppArmor could be started")
    return f"{counts['ok']} checks, {counts['SKIPPED']} skipped"
