# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Runs each mutation test of the crates (fuzz/mutations.rs) for a long time, optimised, with counted edges of the
control flow, and with limited address space."""

import collections
import concurrent.futures
import functools
import json
import os
import pathlib
import re
import subprocess
import tempfile

from common import ROOT, TARGET, Failed

# Name, package, its test program, the test in that program, and the parser's own files.
TARGETS = [
    ("protocol", "fastpath-protocol", "mutations", "whatever_the_bytes_they_are_a_message_or_refused_with_a_sentence",
     ["core/protocol/src/message.rs"]),
    ("policy", "fastpath-daemon", "mutations", "whatever_the_bytes_they_are_a_policy_or_told_what_is_wrong",
     ["service/daemon/src/policy/mod.rs", "service/daemon/src/policy/glob.rs"]),
    ("mailbox", "fastpath-inject", "fastpath_inject",
     "exec::mailbox::tests::whatever_is_in_a_mailbox_each_request_is_taken_once",
     ["surgery/inject/src/exec/mailbox.rs"]),
    ("journal", "fastpath-inject", "fastpath_inject",
     "plan::redirection::journal::tests::whatever_a_process_has_in_its_journal_it_is_read_or_refused",
     ["surgery/inject/src/plan/redirection/journal.rs"]),
    ("redirection", "fastpath-inject", "fastpath_inject",
     "plan::redirection::tests::whatever_a_kernels_vdso_contains_it_is_redirected_or_refused",
     [f"surgery/inject/src/plan/redirection/{name}.rs" for name in ("call_frames", "entry_body", "mod", "plan_region", "slow_path", "stub", "x86")]),
    ("sites", "fastpath-inject", "fastpath_inject", "target::sites::tests::whatever_a_program_contains_it_has_sites_or_none",
     ["surgery/inject/src/target/sites.rs", "surgery/inject/src/abi/x86_64/sites.rs"]),
    ("seccomp", "fastpath-inject", "fastpath_inject", "target::seccomp_filter::tests::any_bytes_are_judged_in_bounded_time",
     ["surgery/inject/src/target/seccomp_filter/mod.rs"]),
    ("proc", "fastpath-os", "fastpath_os", "tests::whatever_a_file_of_proc_contains_it_is_read_or_refused",
     ["core/os/src/maps.rs", "core/os/src/stat.rs", "core/os/src/status.rs"]),
    ("log", "fastpath-doctor", "fastpath_doctor", "kernel_log::tests::whatever_a_kernels_log_contains_it_is_read",
     ["instruments/doctor/src/kernel_log.rs"]),
    ("page", "fastpath-doctor", "fastpath_doctor", "page::tests::whatever_a_process_has_in_its_page_it_is_read_or_refused",
     ["instruments/doctor/src/page.rs", "core/page/src/reader.rs"]),
    ("evidence", "fastpath-report", "mutations", "whatever_the_bytes_they_are_judged_as_evidence_or_refused_with_a_sentence",
     ["instruments/report/src/read.rs"]),
    ("report", "fastpath-report", "mutations", "whatever_the_bytes_they_are_hosts_of_a_page_or_refused_with_a_sentence",
     ["instruments/report/src/read.rs", "instruments/report/src/nanoseconds.rs"]),
    ("vDSO", "fastpath-image", "mutations", "whatever_the_bytes_they_are_a_vdso_or_refused",
     ["core/image/src/elf/mod.rs", "core/image/src/vdso.rs"]),
    ("code", "fastpath-code", "mutations", "whatever_the_bytes_they_have_sites_or_none", ["surgery/code/src/"]),
    ("ELF", "fastpath-tools", "mutations", "whatever_the_bytes_there_is_an_answer_in_time",
     ["instruments/tools/src/audit/judge.rs", "instruments/tools/src/audit/facts.rs", "instruments/tools/src/audit/families.rs", "surgery/code/src/elf.rs"]),
    ("tar", "fastpath-tools", "mutations", "a_broken_tar_archive_has_an_answer_in_time",
     ["instruments/tools/src/audit/archive.rs", "instruments/tools/src/audit/layers.rs", "instruments/tools/src/audit/manifests.rs"]),
    ("zstd", "fastpath-tools", "mutations", "a_broken_zstd_frame_has_an_answer_in_time",
     ["instruments/tools/src/audit/archive.rs"]),
    ("NRI", "fastpath-nri", "fastpath_nri", "connection::tests::whatever_a_runtime_sends_it_is_a_call_or_refused",
     ["service/nri/src/connection.rs", "service/nri/src/annotation.rs"]),
    ("HTTP", "fastpath", "fastpath", "export::server::tests::whatever_a_client_sends_it_is_a_request_or_refused",
     ["cli/src/export/server.rs"]),
]
# The audit promises to take at most 512 MiB; the rest is for the mappings of the test program and its threads.
MOST_BYTES = 1 << 30
# Time after the requested one at which a test is considered hung.
TIMEOUT_S = 300
# LLVM's SanitizerCoverage, which fuzz/mutations.rs reads.
COVERAGE = ["level=3", "inline-8bit-counters", "pc-table", "trace-compares", "prune-blocks=0"]
ENVIRONMENT = {
    **os.environ,
    "CARGO_TARGET_DIR": str(TARGET / "fuzz"),
    "RUSTFLAGS": " ".join(["-Cpasses=sancov-module"] + [f"-Cllvm-args=-sanitizer-coverage-{option}" for option in COVERAGE]),
    **{f"CARGO_PROFILE_RELEASE_{option}": value for option, value in {
        "DEBUG": "line-tables-only", "DEBUG_ASSERTIONS": "true", "LTO": "off", "OVERFLOW_CHECKS": "true", "STRIP": "none",
    }.items()},
}


@functools.cache
def build(package, program):
    """Returns the path of a test program, and builds it if it is missing."""
    version = subprocess.run(["rustc", "-vV"], stdout=subprocess.PIPE, text=True, check=True).stdout
    machine = re.search(r"host: (.*)", version).group(1)
    target = {"mutations": ["--test", program], "fastpath": ["--bin", program]}.get(program, ["--lib"])
    # For a target that is named, cargo leaves build scripts and macros out of RUSTFLAGS.
    command = ["cargo", "test", "--release", "--no-run", "--quiet", "--message-format=json", "--target", machine, "--package", package, *target]
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    messages = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    built = [each["executable"] for each in messages if each.get("executable") and each["target"]["name"] == program]
    if done.returncode != 0 or not built:
        raise Failed(f"cargo cannot build the tests of {package}")
    return built[-1]


@functools.cache
def code(file):
    """Returns a source file's lines, without its tests, what is derived, and braces, to which the unwinding of a panic belongs."""
    text = file.read_text().split("#[cfg(test)]\nmod tests")[0]
    return [re.sub(r"^ *(#\[(derive|serde)|pub(\(crate\))? \w+: |\W*$).*", "", line) for line in text.splitlines()]


def lines(program, edges, own):
    """Returns, for each line of a parser's own files that an edge leads to, whether it was reached."""
    addresses, reached = zip(*(line.split() for line in edges.read_text().splitlines()))
    done = subprocess.run(["addr2line", "-e", program], input="\n".join(addresses), stdout=subprocess.PIPE, text=True, check=True)
    found = collections.defaultdict(bool)
    for place, is_reached in zip(done.stdout.splitlines(), reached):
        file, _, line = place.partition(" ")[0].rpartition(":")
        name = os.path.relpath(file, ROOT)
        if line.isdigit() and any(name.startswith(each) for each in own) and any(code(pathlib.Path(file))[int(line) - 1:int(line)]):
            found[name, int(line)] |= is_reached == "1"
    return found


def feed(seconds, name, path, test, own):
    """Runs one of them. Returns its figures, and whether it failed."""
    with tempfile.NamedTemporaryFile(prefix="edges-") as edges:
        environment = {**os.environ, "FASTPATH_MUTATION_SECONDS": str(seconds), "FASTPATH_MUTATION_UNCAPPED": "1",
                       "FASTPATH_MUTATION_EDGES": edges.name}
        command = ["prlimit", f"--as={MOST_BYTES}", path, "--exact", test, "--nocapture"]
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True, errors="replace", timeout=seconds + TIMEOUT_S,
            )
            out, status = done.stdout, done.returncode
        except subprocess.TimeoutExpired as expired:
            out, status = (expired.stdout or b"").decode(errors="replace"), "none: it hangs"
        figures = re.search(r"\d+ inputs in \d+ s.*", out)
        if status != 0 or not figures:
            why = f"{name}: exit status {status}: {out.strip()[-2000:]}"
            print(f"long fuzz: {why}", flush=True)
            return why, True
        found = lines(path, pathlib.Path(edges.name), own)
    missed = " ".join(f"{file}:{line}" for (file, line), reached in sorted(found.items()) if not reached)
    figures = f"{name}: {figures.group(0)}; {sum(found.values())} of {len(found)} lines reached"
    print(f"long fuzz: {figures}; not reached: {missed or 'none'}", flush=True)
    return figures, False


def run(options):
    """Runs the part. Returns its figures."""
    built = [(name, build(package, program), test, own) for name, package, program, test, own in TARGETS]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        done = list(pool.map(lambda each: feed(options.fuzz_seconds, *each), built))
    figures = "; ".join(figures for figures, _ in done)
    if any(failed for _, failed in done):
        raise Failed(figures)
    return figures
