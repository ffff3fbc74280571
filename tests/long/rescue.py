# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Attaches a program with --rescue and detaches it, again and again, while it compares its calls with the kernel's.

The program is cli/tests/e2e/helpers/raw-calls.c, linked dynamically and statically. It reports every difference between a call that may be
redirected and a system call. After each detach, the code of the program and of its libraries must be what it was before the first
attach, byte for byte; while the program is attached, it must be another.
"""

import os
import re
import signal
import statistics
import subprocess
import tempfile
import time

from common import ROOT, TARGET, TIMEOUT_S, Failed, Skipped, is_served, read, wait_until

SOURCE = ROOT / "cli" / "tests" / "e2e" / "helpers" / "raw-calls.c"
FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-O2", "-pthread"]
LINKS = {"dynamic": [], "static": ["-static", "-no-pie"]}
# Cycles between two lines of progress.
PROGRESS = 250
# Statuses of fastpath for a thread that does not stop in time.
BUSY = 14


def built(name):
    path = TARGET / f"raw-calls-{name}"
    compiler = os.environ.get("CC", "cc")
    try:
        subprocess.run([compiler, *FLAGS, *LINKS[name], "-o", path, SOURCE], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise Skipped(f"{compiler} does not build raw-calls ({name}): {getattr(error, 'stderr', error)}") from None
    return path


def code(pid):
    """Returns the code of a process that comes from files, and its vDSO, by mapping. The page and thunks of fastpath are mappings of files, too."""
    found = {}
    with open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in read(f"/proc/{pid}/maps").decode().splitlines():
            match = re.match(r"([0-9a-f]+)-([0-9a-f]+) r-xp \S+ \S+ \S+ +(/.*|\[vdso\])", line)
            if match:
                begin, end = int(match[1], 16), int(match[2], 16)
                memory.seek(begin)
                found[f"{match[1]} {match[3]}"] = memory.read(end - begin)
    return found


def unlike_files(pid):
    """Returns the mappings of a process whose code is not that of their files."""
    found = []
    with open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in read(f"/proc/{pid}/maps").decode().splitlines():
            match = re.match(r"([0-9a-f]+)-([0-9a-f]+) r-xp ([0-9a-f]+) \S+ [1-9]\d* +(/.*)", line)
            if not match or match[4].startswith("/memfd:"):
                continue
            begin, end = int(match[1], 16), int(match[2], 16)
            memory.seek(begin)
            with open(match[4], "rb") as file:
                file.seek(int(match[3], 16))
                of_file = file.read(end - begin)
            if memory.read(end - begin) != of_file.ljust(end - begin, b"\0"):
                found.append(match[4])
    return found


def changed(before, after):
    """Returns where the code that was there before differs now, as text."""
    found = []
    for name, bytes_before in before.items():
        if name not in after:
            found.append(f"{name} is gone")
        elif after[name] != bytes_before:
            at = [i for i, (a, b) in enumerate(zip(bytes_before, after[name])) if a != b]
            found.append(f"{name}: {len(at)} bytes, the first at offset {at[0]:#x}")
    return found


class Program:
    def __init__(self, fastpath, path):
        self.fastpath, self.path = fastpath, str(path)
        self.again, self.stopped_ms, self.sites = 0, [], set()
        self.out = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([path], stdin=subprocess.DEVNULL, stdout=self.out, stderr=subprocess.STDOUT)
        self.pid = self.process.pid

    def text(self):
        self.out.seek(0)
        return self.out.read()

    def wait_until_ready(self):
        wait_until("a program's first round", lambda: "ready" in self.text() or self.process.poll() is not None)

    def change(self, *words):
        """Attaches or detaches. On a busy machine a thread may not stop in time; then fastpath has changed nothing, and is called again."""
        end = time.monotonic() + TIMEOUT_S
        while True:
            command = [self.fastpath, *words, str(self.pid)]
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S)
            if done.returncode == 0:
                return done.stderr
            if done.returncode != BUSY or time.monotonic() > end:
                raise Failed(f"fastpath {' '.join(words)}: exit status {done.returncode}: {done.stderr.strip()}; {self.text()[-600:]}")
            self.again += 1

    def cycle(self, before, inspects):
        said = self.change("attach", "--rescue", "--verbose")
        self.stopped_ms += map(float, re.findall(r"stopped for ([0-9.]+) ms", said))
        if not is_served(self.pid):
            raise Failed(f"the program is attached and has no page: {said}")
        counts = re.search(r"(\d+) of its own system calls for time are rescued, (\d+) are not", said)
        if not counts:
            raise Failed(f"attach --rescue does not say what it rescued: {said}")
        self.sites.add((int(counts[1]), int(counts[2])))
        mappings = changed(before, code(self.pid))
        # The program's own code, beside libc's and the vDSO's.
        if not any(self.path in each for each in mappings):
            raise Failed(f"attach --rescue changed no code of the program, but {mappings}: {said}")
        if inspects:
            # It reads by the thunks for a while.
            time.sleep(0.2)
        self.change("detach")
        after = code(self.pid)
        wrong = changed(before, after) + [f"{name} remains" for name in after.keys() - before.keys()]
        if wrong:
            raise Failed(f"the code after detach is not as before: {'; '.join(wrong)}")
        return len(mappings)

    def end(self):
        """Ends the program, and returns its counts: rounds, signals and differences."""
        self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise Failed(f"the program did not end: {self.text()[-600:]}") from None
        counts = re.search(r"(\d+) rounds, (\d+) signals, (\d+) differences", self.text())
        if status != 0 or not counts or int(counts[3]) != 0:
            raise Failed(f"the program ended with status {status}: {self.text()[-3000:]}")
        return [int(count) for count in counts.groups()]

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def cycles_of(options, name):
    """Returns the figures of one program."""
    program = Program(options.fastpath.resolve(), built(name))
    try:
        program.wait_until_ready()
        before, mappings = code(program.pid), 0
        for cycle in range(options.cycles):
            if program.process.poll() is not None:
                raise Failed(f"{name}: the program ended in cycle {cycle}: status {program.process.returncode}: {program.text()[-3000:]}")
            mappings = program.cycle(before, cycle % 10 == 0)
            if (cycle + 1) % PROGRESS == 0:
                print(f"long rescue: {name}: {cycle + 1} cycles", flush=True)
        unlike = unlike_files(program.pid)
        if unlike:
            raise Failed(f"{name}: the code after the last detach is not that of the files: {', '.join(unlike)}")
        rounds, signals, differences = program.end()
    finally:
        program.kill()
    size = sum(map(len, before.values()))
    sites = ", ".join(f"{rescued} sites redirected, {others} not" for rescued, others in sorted(program.sites))
    stopped = f"stopped for {statistics.median(program.stopped_ms):.1f} ms (median), {max(program.stopped_ms):.1f} ms (longest)"
    return (
        f"{name}: {options.cycles} cycles, {sites}, {differences} differences in {rounds} rounds and {signals} signals, {size:,} bytes of code in "
        f"{len(before)} mappings ({mappings} of them changed) as before after each detach, {stopped}, {program.again} tried again"
    )


def run(options):
    """Runs the part. Returns its figures."""
    if os.uname().machine != "x86_64":
        raise Skipped("attach serves x86-64 only")
    return "; ".join(cycles_of(options, name) for name in LINKS)
