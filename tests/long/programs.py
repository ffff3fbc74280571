# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Runs tests of other projects that Debian packages: without fastpath, under `fastpath run`, and while they are attached and detached.

A case that passes as it is must pass in the other two ways. One that does not is tried again, twice, in all three ways: on a busy machine
such tests fail by themselves.
"""

import collections
import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import xml.etree.ElementTree as xml

from common import TIMEOUT_S, Failed, Skipped, read

NOBODY = 65534
TRIES = 3
# Longest time for each run of a suite, in seconds.
SUITE_S = 900
STRESS_S = 2
# Stressors of time, signals, processes, scheduling and system calls that require no privilege and little memory.
STRESSORS = """
    alarm clock hrtimers itimer nanosleep sleep time-warp timer timerfd tsc vdso
    sigabrt sigchld sigfd sigfpe sigio signal signest sigpending sigpipe sigq sigrt sigsegv sigsuspend sigtrap
    clone daemon exec exit-group fork kill pidfd procfs ptrace spawn vfork wait zombie
    affinity context futex membarrier mutex poll pthread rseq schedpolicy sem switch yield
    dup enosys epoll eventfd get getrandom mremap munmap pipe prctl seccomp set syscall sysbadaddr sysinfo usersyscall x86syscall
    """.split()
PYTHON = ["test_time", "test_subprocess", "test_asyncio", "test_signal", "test_threading"]
GO = ["time", "context", "os/signal"]


class Suite:
    """Cases that one command runs. `outcomes` returns a dictionary of them: whether each passed."""

    def __init__(self, name, command, outcomes, directory=None):
        self.name, self.command, self.outcomes, self.directory = name, command, outcomes, directory


def as_nobody(directory):
    return {"user": NOBODY, "group": NOBODY, "extra_groups": [], "cwd": directory, "umask": 0o022}


def stress_ng():
    program = shutil.which("stress-ng")
    if not program:
        raise Skipped("there is no stress-ng here")
    known = subprocess.run([program, "--help"], capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout
    for name in STRESSORS:
        if not re.search(rf"--{name} N\b", known):
            continue
        command = [program, f"--{name}", "1", "--timeout", str(STRESS_S), "--verify", "--no-rand-seed", "--temp-path", "."]
        # 3 is "no resources", 4 "not implemented": such cases cannot pass.
        yield Suite(f"stress-ng {name}", command, lambda _out, status, name=name: {name: status == 0})


def python():
    for program in ("/usr/bin/python3", shutil.which("python3")):
        command = [program, "-c", "import test.test_time, test.test_asyncio, test.libregrtest"]
        try:
            if subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, **as_nobody("/")).returncode == 0:
                break
        except OSError:
            continue
    else:
        raise Skipped("there is no Python with its tests here that every user can read")
    for name in PYTHON:
        results = f"{tempfile.mkdtemp()}/results.xml"
        os.chmod(os.path.dirname(results), 0o777)

        def outcomes(_out, status, results=results, name=name):
            cases = {name: status == 0}
            if os.path.exists(results):
                for case in xml.parse(results).iter("testcase"):
                    cases[case.get("name")] = case.find("failure") is None and case.find("error") is None
                os.unlink(results)
            return cases

        yield Suite(f"CPython {name}", [program, "-m", "test", "--junit-xml", results, name], outcomes)


def go():
    program = shutil.which("go")
    if not program:
        raise Skipped("there is no go here")
    root = subprocess.run([program, "env", "GOROOT"], capture_output=True, text=True, check=True).stdout.strip()
    place = tempfile.mkdtemp()
    os.chmod(place, 0o755)
    for package in GO:
        test = f"{place}/{package.replace('/', '-')}.test"
        environment = {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=mod"}
        built = subprocess.run([program, "test", "-c", "-o", test, package], cwd=f"{root}/src", env=environment, capture_output=True, text=True)
        if built.returncode != 0:
            raise Skipped(f"go cannot build the tests of {package}: {built.stderr.strip()}")

        def outcomes(out, status, package=package):
            cases = {name: word == "PASS" for word, name in re.findall(r"^\s*--- (PASS|FAIL): (\S+)", out, re.M)}
            return {package: status == 0, **cases}

        yield Suite(f"Go {package}", [test, "-test.v", "-test.short"], outcomes, f"{root}/src/{package}")


def tree(pid):
    """Returns a process and its descendants that are running."""
    children = collections.defaultdict(list)
    for name in os.listdir("/proc"):
        if name.isdigit():
            fields = read(f"/proc/{name}/stat").decode(errors="replace").rpartition(")")[2].split()
            if fields and fields[0] not in "ZX":
                children[int(fields[1])].append(int(name))
    found = [pid]
    for each in found:
        found += children[each]
    return found


class Attacher:
    """Attaches a process and its descendants, and detaches them, again and again until the process has ended."""

    def __init__(self, fastpath, pid, seed):
        self.fastpath, self.pid, self.random = fastpath, pid, random.Random(seed)
        self.attached, self.failure, self.over = 0, None, threading.Event()
        self.thread = threading.Thread(target=self.work)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()

    def work(self):
        while not self.over.is_set():
            children = self.random.choice([[], ["--children"]])
            self.attached += self.change(["attach", "--clocks", "all", *children]) == 0
            self.pause()
            self.change(["detach"])
            self.pause()

    def pause(self):
        """Waits long enough for progress: each stop restarts the timeout of epoll_wait(2), and programs wait for up
        to half a second."""
        self.over.wait(self.random.choice([0, 0, 1]) * self.random.uniform(0.5, 2))

    def change(self, words):
        """Attaches or detaches. Processes end meanwhile, and some cannot be attached: only a fastpath that dies or
        hangs is wrong."""
        command = [self.fastpath, *words, *map(str, tree(self.pid))]
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.failure = f"fastpath {words[0]} did not end within {TIMEOUT_S} s"
            return None
        if done.returncode < 0 or done.returncode == 101:
            self.failure = f"fastpath {words[0]}: status {done.returncode}: {done.stderr.strip()[-500:]}"
        return done.returncode


class Ways:
    """The three ways to run a suite."""

    def __init__(self, options):
        self.fastpath, self.seed, self.attached = options.fastpath.resolve(), options.seed, 0
        self.home = tempfile.mkdtemp()
        os.chmod(self.home, 0o777)

    def plain(self, suite):
        return self.outcome(suite, [])

    def run(self, suite):
        return self.outcome(suite, [str(self.fastpath), "run", "--clocks", "all", "--require", "--"])

    def attach(self, suite):
        return self.outcome(suite, [], attached=True)

    def outcome(self, suite, prefix, attached=False):
        with tempfile.TemporaryFile("w+", errors="replace") as out:
            environment = {**os.environ, "HOME": self.home, "TMPDIR": self.home}
            process = subprocess.Popen(
                [*prefix, *suite.command], stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=environment,
                start_new_session=True, **as_nobody(suite.directory or self.home),
            )
            try:
                if attached:
                    with Attacher(self.fastpath, process.pid, self.seed) as attacher:
                        status = wait(process)
                    self.attached += attacher.attached
                    if attacher.failure:
                        raise Failed(f"{suite.name}: {attacher.failure}")
                else:
                    status = wait(process)
            finally:
                for pid in tree(process.pid):
                    end(pid)
                process.wait()
            out.seek(0)
            text = out.read()
        return suite.outcomes(text, status), text


def wait(process):
    try:
        return process.wait(SUITE_S)
    except subprocess.TimeoutExpired:
        return None


def end(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def judge(ways, suite):
    """Runs a suite in the three ways. Returns how many cases passed plain, which of these failed otherwise, and
    which were repeated."""
    suspects, passed, again = None, 0, 0
    for _ in range(TRIES):
        cases, _text = ways.plain(suite)
        good = {case for case, has_passed in cases.items() if has_passed}
        passed = max(passed, len(good))
        found = {}
        for way in (ways.run, ways.attach):
            if not good:
                break
            outcome, text = way(suite)
            for case in good - {case for case, has_passed in outcome.items() if has_passed}:
                found[way.__name__, case] = text
        suspects = found if suspects is None else {key: found[key] for key in suspects if key in found}
        if not suspects:
            return passed, {}, again
        again += 1
    return passed, suspects, again


def run(options):
    """Runs the part. Returns its figures."""
    ways = Ways(options)
    figures, failures, missing = [], [], []
    for kind, suites in (("stress-ng", stress_ng), ("CPython", python), ("Go", go)):
        began, passed, count, again = time.monotonic(), 0, 0, 0
        try:
            for suite in suites():
                cases, wrong, tried = judge(ways, suite)
                passed, count, again = passed + cases, count + 1, again + tried
                for (way, case), text in wrong.items():
                    failures.append(f"{suite.name}: {case} passes as it is, and fails under {way}")
                    print(f"long programs: {failures[-1]}:\n{text[-3000:]}", flush=True)
                print(f"long programs: {suite.name}: {cases} cases pass as it is, {len(wrong)} of them fail with fastpath", flush=True)
        except Skipped as why:
            missing.append(str(why))
            print(f"SKIPPED: long programs {kind}: {why}", flush=True)
            continue
        figures.append(f"{kind}: {passed} cases of {count} suites in {time.monotonic() - began:.0f} s, {again} tried again")
    figures = "; ".join([*figures, *missing, f"attached {ways.attached} times"])
    if failures:
        raise Failed("; ".join(failures) + f"; {figures}")
    return figures
