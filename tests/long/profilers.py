# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Profilers from package registries find the callers of served clock reads: async-profiler, py-spy and pprof-rs, each with a program that
reads a clock, as it is and under `fastpath run`.
"""

import collections
import os
import subprocess
import sys
import zipfile

from common import ROOT, TARGET, Failed, Skipped

ASYNC_PROFILER = "4.2"
PY_SPY = "0.4.3"
PROGRAMS = ROOT / "tests" / "long" / "profiled"
BUILT = TARGET / "profiled"
SECONDS = "3"
# Least share of the samples whose stacks must have the callers, and least number of them.
LEAST, FEWEST = 0.95, 20
BUILD_S = 600


def build(*words):
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=BUILD_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Skipped(error) from None
    if done.returncode:
        raise Skipped(f"{words[0]}: {(done.stderr or done.stdout).strip()[-500:]}")


def execute(*words):
    """Returns what a program prints."""
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise Failed(f"{' '.join(map(str, words))}: exit status {done.returncode}: {done.stderr.strip()[-500:]}")
    return done.stdout


# Each of these prepares a profiler. It returns the innermost frame of reads, the callers that their stacks must have, and a function that
# runs a program behind the given words and returns stacks: lines `FRAME;FRAME... COUNT`, the innermost last.


def async_profiler():
    name = f"async-profiler-{ASYNC_PROFILER}.jar"
    if not (BUILT / name).exists():
        build("mvn", "-q", "-B", "dependency:copy", f"-Dartifact=tools.profiler:async-profiler:{ASYNC_PROFILER}", f"-DoutputDirectory={BUILT}")
    isa = {"x86_64": "x64", "aarch64": "arm64"}[os.uname().machine]
    library = zipfile.ZipFile(BUILT / name).extract(f"linux-{isa}/libasyncProfiler.so", BUILT)
    build("javac", "-d", BUILT, PROGRAMS / "Profiled.java")
    stacks = BUILT / "stacks-of-java"
    agent = f"-agentpath:{library}=start,event=itimer,interval=1ms,file={stacks},collapsed"

    def profile(words):
        execute(*words, "java", agent, "-cp", BUILT, "Profiled", SECONDS)
        return stacks.read_text()

    # Java's frames are found without call frames, the JVM's own are not.
    return "[vdso]", ["readClocks", "javaTimeNanos"], profile


def py_spy():
    spy = BUILT / "python" / "bin" / "py-spy"
    if not spy.exists():
        build(sys.executable, "-m", "venv", BUILT / "python")
        build(BUILT / "python" / "bin" / "pip", "install", "--quiet", f"py-spy=={PY_SPY}")
    stacks = BUILT / "stacks-of-python"
    record = [spy, "record", "--native", "--rate", "200", "--duration", SECONDS, "--format", "raw", "--output", stacks]

    def profile(words):
        program = [*words, sys.executable, PROGRAMS / "profiled.py"]
        with subprocess.Popen(program, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as reader:
            try:
                # It prints a line when it begins.
                reader.stdout.readline()
                execute(*record, "--pid", str(reader.pid))
            finally:
                reader.kill()
        return stacks.read_text()

    return "[vdso]", ["read_clocks"], profile


def pprof_rs():
    build("cargo", "build", "--quiet", "--release", "--manifest-path", PROGRAMS / "Cargo.toml", "--target-dir", BUILT / "rust")
    # It leaves out frames without a name, as the vDSO's are.
    return "", ["read_clocks"], lambda words: execute(*words, BUILT / "rust" / "release" / "profiled", SECONDS)


def found(stacks, reads, callers):
    """Returns the number of samples in reads that have the callers, and that of all samples in reads."""
    counts = collections.Counter()
    for line in stacks.splitlines():
        stack, _, count = line.rpartition(" ")
        if reads in stack.rpartition(";")[2]:
            counts[all(caller in stack for caller in callers)] += int(count)
    return counts[True], sum(counts.values())


def run(options):
    """Runs the part. Returns its figures."""
    served = [options.fastpath.resolve(), "run", "--clocks", "all", "--require", "--"]
    figures, has_failed = [], False
    BUILT.mkdir(parents=True, exist_ok=True)
    for profiler in (async_profiler, py_spy, pprof_rs):
        try:
            reads, callers, profile = profiler()
        except Skipped as why:
            print(f"SKIPPED: long profilers {profiler.__name__}: {why}", flush=True)
            continue
        as_it_is = found(profile([]), reads, callers)
        has_callers, count = found(profile(served), reads, callers)
        has_failed |= count < FEWEST or has_callers < LEAST * count
        figures.append("{}: callers of {} of {} samples, as it is of {} of {}".format(profiler.__name__, has_callers, count, *as_it_is))
    if has_failed:
        raise Failed("; ".join(figures))
    if not figures:
        raise Skipped("no profiler could be fetched")
    return "; ".join(figures)
