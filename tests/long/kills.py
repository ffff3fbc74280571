# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Kills fastpath and fastpathd at random moments, beside programs that read their clocks all the time.

No program that is served may die, hang, or read a wrong time; and the next fastpath must adopt or remove what a killed one leaves. Three lanes
work at the same time, for one round after the other. Each round has its own programs, so that the lock of the machine's clock, which
they hold, is free in between for tests that set the clock.
"""

import collections
import json
import os
import pathlib
import random
import select
import signal
import subprocess
import tempfile
import threading
import time

from common import MARK, TIMEOUT_S, PROGRAMS, Failed, helpers, is_served, read, wait_until

ROUND_S = 20
# Longest delay of a kill after the start of its target. It is longer than each of the targets takes on an idle machine.
RUN_S, SURGERY_S, DAEMON_S = 0.12, 0.06, 0.15
# After so many kills, processes that are not killed take up what was left.
TAKEN_UP_EVERY = 20
MODES = ["-m", "same,causal,mixed"]


class Reader:
    """tests/programs/torture: reads clocks with two threads, compares the reads, and exits with 1 if two contradict
    each other."""

    def __init__(self, prefix=(), seconds=None, environment=None):
        self.out = tempfile.TemporaryFile("w+")
        self.err = tempfile.TemporaryFile("w+")
        length = ["-s", str(seconds)] if seconds else ["-u", "-s", "1"]
        command = [*map(str, prefix), str(PROGRAMS / "torture"), *length, "-t", "2", *MODES]
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self.out, stderr=self.err, env={**os.environ, **(environment or {})}
        )
        self.pid = self.process.pid

    def text(self, file):
        file.seek(0)
        return file.read()

    def is_reading(self):
        """Returns whether it has started, and is no longer fastpath."""
        if self.process.poll() is not None:
            raise Failed(f"a program ended early: {self.words()}")
        return os.path.basename(os.readlink(f"/proc/{self.pid}/exe")) == "torture"

    def words(self):
        return f"status {self.process.returncode}, output {self.text(self.out)[-600:]!r}, errors {self.text(self.err)[-600:]!r}"

    def end(self, asked=True):
        """Ends it, judges it, and returns how many reads it made."""
        if asked:
            # Until a program that reads clocks has read for a round, SIGTERM kills it.
            wait_until("a round of a program that reads clocks", lambda: self.text(self.out) or self.process.poll() is not None)
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            state = read(f"/proc/{self.pid}/status").decode()
            raise Failed(f"a program that was served did not end within {TIMEOUT_S} s: {state}") from None
        if self.process.returncode != 0:
            raise Failed(f"a program that was served: {self.words()}")
        rounds = [json.loads(line) for line in self.text(self.out).splitlines()]
        if not rounds or any(each["violations"] for each in rounds):
            raise Failed(f"a program that was served read a wrong time: {self.words()}")
        self.out.close()
        self.err.close()
        return sum(each["reads"] for each in rounds)

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


class Witness:
    """tests/programs/attached: 64 threads that read clocks, sleep, fork and pass data on, and report any error of
    these."""

    def __init__(self):
        self.process = subprocess.Popen([PROGRAMS / "attached"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self.process.pid

    def ask(self, what):
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise Failed(f"the program that notices everything died: status {self.process.wait()}")
        report = json.loads(line)
        # Some calls return EINTR after every stop. Only the tracer that stopped one can restart it, and that tracer was
        # killed.
        if report["wrong"] != report["unexplained_eintr"]:
            raise Failed(f"the program that notices everything: {line}")
        return report

    def end(self):
        report = self.ask("stop")
        try:
            code = self.process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise Failed("the program that notices everything did not end") from None
        if code < 0:
            raise Failed(f"the program that notices everything ended by signal {-code}")
        return report["order"]["reads"] + report["truth"]["reads"] + report["in_handlers"]["reads"]

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


class Lane:
    """One kind of kills, in its own thread, until a round is over."""

    def __init__(self, fastpath, seed):
        self.fastpath, self.random = fastpath, random.Random(f"{seed} {type(self).__name__}")
        self.kills, self.reads, self.failure = collections.Counter(), 0, None
        self.marks = self.again = 0

    def mark(self):
        self.marks += 1
        return f"long-{os.getpid()}-{type(self).__name__}-{self.marks}"

    def moment(self, within_s):
        time.sleep(self.random.uniform(0, within_s))

    def command(self, words, environment, expected):
        """Runs a command of fastpath to its end, which must have one of the expected exit statuses. On a busy
        machine a thread may not stop in time: then nothing is changed, fastpath says to try again later, and the
        command is repeated."""
        end = time.monotonic() + TIMEOUT_S
        while True:
            done = subprocess.run(
                [self.fastpath, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, env={**os.environ, **environment},
                timeout=TIMEOUT_S,
            )
            if done.returncode in expected:
                return
            if "try again later" not in done.stderr or time.monotonic() > end:
                break
            self.again += 1
        maps = read(f"/proc/{words[-1]}/maps").decode().splitlines()
        left = "; ".join(line for line in maps if "fastpath" in line) or "none of our mappings"
        raise Failed(f"fastpath {' '.join(words)}: exit status {done.returncode}: {done.stderr.strip()}; it has {left}")

    def work(self, over):
        try:
            self.round(over)
        except Failed as why:
            self.failure = why
        except Exception as why:  # noqa: BLE001
            self.failure = Failed(f"{type(self).__name__}: {why!r}")


class Runs(Lane):
    """Kills the helper of `fastpath run` while the program that it serves starts, and while it reads."""

    def round(self, over):
        while not over():
            mark = self.mark()
            prefix = [self.fastpath, "run", "--without-vdso", "--clocks", "all", "--"]
            reader = Reader(prefix, seconds=RUN_S, environment={MARK: mark})
            try:
                found = wait_until("a helper", lambda: helpers(mark) or reader.process.poll() is not None)
                if found is not True:
                    self.moment(RUN_S + 0.03)
                    self.kills["helper of run"] += kill_process(found[0])
                self.reads += reader.end(asked=False)
            finally:
                reader.kill()


class Surgery(Lane):
    """Kills `fastpath attach` and `fastpath detach` while they work, and the helpers that attach leaves while they
    serve."""

    def round(self, over):
        witness, reader = Witness(), Reader()
        try:
            wait_until("a program that reads clocks", reader.is_reading)
            mark, count = self.mark(), 0
            while not over():
                target = self.random.choice([witness, reader])
                words = self.random.choice([["attach", "--clocks", "all"], ["detach"]])
                running = subprocess.Popen(
                    [self.fastpath, *words, str(target.pid)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL, env={**os.environ, MARK: mark},
                )
                self.moment(SURGERY_S)
                running.kill()
                self.kills[words[0]] += running.wait() == -signal.SIGKILL
                count += 1
                if count % TAKEN_UP_EVERY == 0:
                    self.take_up(mark, [witness.pid, reader.pid])
            self.take_up(mark, [witness.pid, reader.pid])
            self.reads += witness.end() + reader.end()
        finally:
            witness.kill()
            reader.kill()

    def take_up(self, mark, pids):
        """Checks that a whole cycle works, whatever state the processes were left in, and another one after the
        helper was killed."""
        environment = {MARK: mark}
        for pid in pids:
            # The process may not be attached.
            self.command(["detach", str(pid)], environment, (0, 15))
            self.command(["attach", "--clocks", "all", str(pid)], environment, (0,))
            if not is_served(pid):
                raise Failed("fastpath attach succeeded, and the process maps no page")
        self.moment(SURGERY_S)
        for helper in helpers(mark):
            self.kills["helper of attach"] += kill_process(helper)
        for pid in pids:
            self.command(["detach", str(pid)], environment, (0,))
            # If a thread did not leave the region in time, the next detach removes it.
            wait_until("detach leaves no page", lambda pid=pid: not is_served(pid) or self.detach_again(environment, pid))

    def detach_again(self, environment, pid):
        self.command(["detach", str(pid)], environment, (0, 15))


class Daemons(Lane):
    """Kills fastpathd while it starts, looks for its predecessor's pages, and publishes; programs start at the same
    time."""

    def round(self, over):
        place = tempfile.mkdtemp()
        self.socket, self.log = f"{place}/fastpathd.sock", f"{place}/fastpathd.log"
        daemon = self.start()
        self.answers(daemon)
        readers = []
        try:
            readers.append(Reader(self.prefix("--require"), environment=self.environment()))
            wait_until("a program that reads clocks", readers[0].is_reading)
            short, count = None, 0
            while not over():
                if short is None or short.process.poll() is not None:
                    if short:
                        self.reads += short.end(asked=False)
                        readers.remove(short)
                    # It finds a daemon, or none, or one that dies during the answer.
                    short = Reader(self.prefix(), seconds=RUN_S, environment=self.environment())
                    readers.append(short)
                self.moment(DAEMON_S)
                if daemon.poll() is not None:
                    raise Failed(f"fastpathd ended by itself: status {daemon.returncode}")
                daemon.kill()
                daemon.wait()
                self.kills["daemon"] += 1
                daemon = self.start()
                count += 1
                if count % TAKEN_UP_EVERY == 0:
                    self.take_up(daemon, readers[0].pid)
            self.take_up(daemon, readers[0].pid)
            short = None
            for reader in readers:
                self.reads += reader.end(asked=reader is readers[0])
        finally:
            for reader in readers:
                reader.kill()
            daemon.kill()
            daemon.wait()

    def environment(self):
        return {"FASTPATH_SOCKET": self.socket}

    def prefix(self, *options):
        return [self.fastpath, "run", "--without-vdso", "--clocks", "all", *options, "--"]

    def start(self):
        return subprocess.Popen(
            [self.fastpath.parent / "fastpathd", "--clocks", "all", "--socket", self.socket], stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=pathlib.Path(self.log).open("w"),
        )

    def status(self, daemon):
        if daemon.poll() is not None:
            raise Failed(f"fastpathd ended by itself: status {daemon.returncode}")
        done = subprocess.run(
            [self.fastpath, "status", "--json"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            env={**os.environ, **self.environment()}, timeout=TIMEOUT_S,
        )
        if done.returncode != 0:
            raise Failed(f"fastpath status: exit status {done.returncode}: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def answers(self, daemon):
        wait_until("fastpathd answers", lambda: self.status(daemon)["daemon"] is not None)

    def take_up(self, daemon, pid):
        """Checks that the daemon finds the page of a program that was started before it, and keeps it."""

        def is_kept():
            of_it = [each for each in self.status(daemon)["processes"] if each["pid"] == pid]
            return any(each["publisher"] == daemon.pid and each["is_fresh"] and each["withdrawn"] is None for each in of_it)

        try:
            wait_until("the daemon keeps the page of a program that was started before", is_kept)
        except Failed as why:
            raise Failed(f"{why}; process {pid}: {self.status(daemon)}; fastpathd {daemon.pid}: {read(self.log).decode()}") from None


def kill_process(pid):
    """Kills a process that is not a child of this one, and waits for its end. Returns whether it existed."""
    try:
        file = os.pidfd_open(pid)
        signal.pidfd_send_signal(file, signal.SIGKILL)
    except ProcessLookupError:
        return False
    with os.fdopen(file):
        if not select.select([file], [], [], TIMEOUT_S)[0]:
            raise Failed(f"process {pid} did not die of SIGKILL")
    return True


def run(options):
    """Runs the part. Returns its figures."""
    fastpath = options.fastpath.resolve()
    lanes = [lane(fastpath, options.seed) for lane in (Runs, Surgery, Daemons)]
    began = time.monotonic()
    print(f"long kills: {options.kills} kills, seed {options.seed}", flush=True)

    def killed():
        return sum(sum(lane.kills.values()) for lane in lanes)

    def figures():
        kills = sum((lane.kills for lane in lanes), collections.Counter())
        words = ", ".join(f"{count} of {what}" for what, count in sorted(kills.items()))
        reads = sum(lane.reads for lane in lanes)
        return f"{killed()} kills in {time.monotonic() - began:.0f} s ({words}); {reads / 1e6:.0f}M reads judged, {sum(lane.again for lane in lanes)} commands tried again"

    while killed() < options.kills:
        end = time.monotonic() + ROUND_S

        def over(end=end):
            return time.monotonic() > end or killed() >= options.kills or any(lane.failure for lane in lanes)

        threads = [threading.Thread(target=lane.work, args=(over,)) for lane in lanes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        failures = [f"{type(lane).__name__}: {lane.failure}" for lane in lanes if lane.failure]
        if failures:
            raise Failed(f"{figures()}; seed {options.seed}; {'; '.join(failures)}")
        print(f"long kills: {figures()}; none wrong", flush=True)
    return f"{figures()}; no program died, none read a wrong time, all that was left was taken up"
