# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What `run` does to a server by fastpath: attaching and detaching it with all its processes, and counting its clock reads."""

import json
import os
import pathlib
import signal
import subprocess
import threading
import time

import servers
from servers import Failed

# The clocks that fastpath serves, as trace names them.
SERVED = ("REALTIME", "MONOTONIC", "MONOTONIC_RAW", "BOOTTIME", "TAI")
# Time in which a tracer attaches.
TRACER_S = 1.0


def tree(pid):
    """Returns a process and its descendants."""
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = pathlib.Path(f"/proc/{entry}/stat").read_text()
            except OSError:
                continue
            state, parent = stat.rpartition(")")[2].split()[:2]
            if state not in "ZX":
                parents[int(entry)] = int(parent)
    found = [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found


def mapped(pid):
    """Returns whether a mapping of fastpath is there; None if the process is gone."""
    try:
        return "memfd:fastpath" in pathlib.Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return None


def cpu_ns(pids):
    """Returns the CPU time of processes, and of their children that have ended."""
    ticks = 0
    for pid in pids:
        try:
            stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            continue
        # utime, stime, cutime, cstime: proc_pid_stat(5).
        ticks += sum(map(int, stat.rpartition(")")[2].split()[11:15]))
    return ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def thread_ns(pid):
    """Returns the CPU time of a process's threads, to the nanosecond; in whole ticks where the kernel does not keep that."""
    try:
        return sum(int(path.read_text().split()[0]) for path in pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat"))
    except OSError:
        return cpu_ns([pid])


class Attached:
    """A server's processes, which it attaches and detaches."""

    def __init__(self, fastpath, options, server):
        self.fastpath, self.options, self.server = fastpath, options, server

    def processes(self):
        if self.server.process.poll() is not None:
            raise Failed(f"it ended, status {self.server.process.returncode}: {self.server.last_words()}")
        return tree(self.server.process.pid)

    def say(self, *words):
        return subprocess.run(
            [self.fastpath, *map(str, words)], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
        )

    def change(self, wanted, *words):
        """Attaches or detaches the processes that are not yet as wanted, until none is left: connections come and go
        meanwhile."""
        for _ in range(20):
            others = [pid for pid in self.processes() if mapped(pid) is (not wanted)]
            if not others:
                return
            # One call for all, so that they share one publisher.
            said = self.say(*words, *others)
        raise Failed(f"fastpath {words[0]}: {others} are not: exit status {said.returncode}: {said.stderr.strip()}")

    def attach(self):
        self.change(True, "attach", *self.options)

    def detach(self):
        self.change(False, "detach")

    def publisher(self):
        """Returns the publisher that serves it."""
        said = self.say("status", "--json")
        mine = [process for process in json.loads(said.stdout)["processes"] if process["pid"] == self.server.process.pid]
        if not mine or mine[0]["publisher"] is None:
            raise Failed(f"fastpath status does not name its publisher: {said.stdout}")
        return mine[0]["publisher"]


class Untouched(Attached):
    """A server whose clocks are fast, which `attach` must leave alone."""

    def attach(self):
        said = self.say("attach", *self.options, *self.processes())
        if said.returncode != 0 or "nothing was attached" not in said.stderr:
            raise Failed(f"fastpath attach did not leave it alone: exit status {said.returncode}: {said.stderr.strip()}")
        self.detach()

    def detach(self):
        touched = [pid for pid in self.processes() if mapped(pid)]
        if touched:
            raise Failed(f"{touched} are attached, but every clock is fast here")

    def publisher(self):
        return None


class Started(Attached):
    """A program that is served from its start."""

    def attach(self):
        self.server.prefix = [self.fastpath, "run", *self.options, "--"]

    def detach(self):
        self.server.prefix = []

    def publisher(self):
        return None


def reads_by_trace(fastpath, server, seconds):
    """Returns the clock reads per request, which are system calls of the server, by `fastpath trace`."""
    mine = set()
    words = [fastpath, "trace", "--all", "--json"]
    tracer = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(TRACER_S)
    # Processes of connections live as long as the load.
    watching = threading.Timer(seconds / 2, lambda: mine.update(tree(server.process.pid)))
    watching.start()
    done = server.load(seconds)
    watching.join()
    tracer.send_signal(signal.SIGINT)
    said, why = tracer.communicate(timeout=60)
    if tracer.returncode != 0:
        raise Failed(f"fastpath trace: exit status {tracer.returncode}: {why.strip()}")
    report = json.loads(said)
    calls = sum(
        each["calls"] for each in report["rows"] if each["pid"] in mine and (each["call"] == "gettimeofday" or each["clock"] in SERVED)
    )
    if report["lost"]["calls"]:
        raise Failed(f"fastpath trace lost {report['lost']['calls']} calls")
    return calls / read_for(server, done)


def read_for(server, done):
    """Returns the number of requests that a server has read the clock for."""
    return done.requests + (servers.CLIENTS if server.abandons else 0)
