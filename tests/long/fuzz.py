# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Runs each mutation test of the crates (fuzz/mutations.rs) for a long time, optimised, and with limited address
space."""

import json
import os
import re
import resource
import subprocess
import time

from common import ROOT, Failed

# Name, package, its test program, and the test in that program.
TARGETS = [
    ("protocol", "fastpath-protocol", "mutations", "whatever_the_bytes_they_are_a_message_or_refused_with_a_sentence"),
    ("policy", "fastpath-daemon", "mutations", "whatever_the_bytes_they_are_a_policy_or_told_what_is_wrong"),
    ("mailbox", "fastpath-inject", "fastpath_inject",
     "mailbox::tests::whatever_a_process_writes_into_its_mailbox_each_request_is_taken_once_and_every_slot_is_freed"),
    ("JSON", "fastpath-report", "mutations", "whatever_the_bytes_they_are_hosts_of_a_page_or_refused_with_a_sentence"),
    ("vDSO", "fastpath-image", "mutations", "whatever_the_bytes_they_are_a_vdso_or_refused"),
    ("ELF", "fastpath-tools", "mutations", "whatever_the_bytes_there_is_an_answer_in_time"),
    ("tar", "fastpath-tools", "mutations", "a_broken_tar_archive_has_an_answer_in_time"),
    ("zstd", "fastpath-tools", "mutations", "a_broken_zstd_frame_has_an_answer_in_time"),
]
# The audit promises to take at most 512 MiB; the rest is for the mappings of the test program and its threads.
MOST_BYTES = 1 << 30
# Time after the requested one at which a test is considered hung.
TIMEOUT_S = 300


def build(package, program):
    """Returns the path of a test program, and builds it if it is missing."""
    target = ["--lib"] if program == package.replace("-", "_") else ["--test", program]
    command = ["cargo", "test", "--release", "--no-run", "--quiet", "--message-format=json", "--package", package, *target]
    done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    messages = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    built = [each["executable"] for each in messages if each.get("executable") and each["target"]["name"] == program]
    if done.returncode != 0 or not built:
        raise Failed(f"cargo cannot build the tests of {package}")
    return built[-1]


def run(options):
    """Runs the part. Returns its figures."""
    limit = (MOST_BYTES, MOST_BYTES)
    environment = {**os.environ, "FASTPATH_MUTATION_SECONDS": str(options.fuzz_seconds), "FASTPATH_MUTATION_UNCAPPED": "1"}
    all_figures, failures = [], []
    for name, package, program, test in TARGETS:
        path = build(package, program)
        began = time.monotonic()
        try:
            done = subprocess.run(
                [path, "--exact", test, "--nocapture"], cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True, errors="replace", timeout=options.fuzz_seconds + TIMEOUT_S,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, limit),
            )
            out, status = done.stdout, done.returncode
        except subprocess.TimeoutExpired as expired:
            out, status = (expired.stdout or b"").decode(errors="replace"), "none: it hangs"
        figures = re.search(r"(\d+) inputs in \d+ s.*", out)
        if status != 0 or not figures:
            failures.append(f"{name}: exit status {status}: {out.strip()[-2000:]}")
            print(f"long fuzz: {failures[-1]}", flush=True)
            continue
        rate = int(figures.group(1)) / (time.monotonic() - began)
        all_figures.append(f"{name}: {rate:.0f} inputs/s, {figures.group(0)}")
        print(f"long fuzz: {all_figures[-1]}", flush=True)
    if failures:
        raise Failed("; ".join(failures + all_figures))
    return "; ".join(all_figures)
