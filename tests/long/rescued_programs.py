# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Runs --help and --version of this machine's programs as they are and under `fastpath run --rescue`, and compares exit status and output.

The programs are all ELF programs of /usr/bin and /usr/sbin: those that have system calls for time in their own file, and those in whose
libraries they are. They run as nobody, without a network, in a directory that is removed. A program whose output differs from run to run
without fastpath, too, is compared by its exit status alone. Only programs that gain privileges (setuid, setgid, file capabilities) may be
not served.
"""

import collections
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import signal
import stat
import subprocess
import tempfile

import namespace
from common import Failed, Skipped
from programs import as_nobody, end, tree

PLACES = ["/usr/bin", "/usr/sbin"]
ARGUMENTS = ["--help", "--version"]
LIMIT_S = 20
TRIES = 3
CLONE_NEWNET = 0x40000000
# Status of `run --require` for a program that it cannot serve.
UNSERVED = 125
# Reads the whole output at most.
MOST_BYTES = 1 << 20


def elf_programs():
    """Returns the ELF programs, each once, however many names it has."""
    found = {}
    for place in PLACES:
        for path in sorted(pathlib.Path(place).iterdir()):
            try:
                if path.is_file() and os.access(path, os.X_OK) and path.open("rb").read(4) == b"\x7fELF":
                    found.setdefault(path.resolve(), path)
            except OSError:
                continue
    return sorted(found.values())


def with_sites(fastpath):
    """Returns the number of sites of each program that has some in its own file: redirected, and left alone."""
    done = subprocess.run([fastpath, "audit", "--rescue", "--json", *PLACES], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode not in (0, 1):
        raise Failed(f"fastpath audit --rescue: exit status {done.returncode}: {done.stderr.strip()}")
    counts = {}
    for file in json.loads(done.stdout)["files"]:
        left = sum(site["why_not"] is not None for site in file["sites"])
        counts[str(pathlib.Path(file["path"]).resolve())] = (len(file["sites"]) - left, left)
    return counts


def outcome(prefix, program, argument):
    """Returns exit status and output of a program, or nothing if it does not end in time."""
    home = tempfile.mkdtemp()
    os.chmod(home, 0o777)
    environment = {"PATH": os.environ["PATH"], "HOME": home, "TMPDIR": home, "LC_ALL": "C", "TERM": "dumb"}
    try:
        with tempfile.TemporaryFile() as out:
            process = subprocess.Popen(
                [*prefix, program, argument], stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=environment,
                start_new_session=True, **as_nobody(home),
            )
            try:
                status = process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                for pid in tree(process.pid):
                    end(pid)
                process.wait()
                end_session(process.pid)
            out.seek(0)
            if status is None:
                return None
            # The directory's name is in some programs' output. fastpath warns of sites that it leaves alone.
            text = out.read(MOST_BYTES).replace(home.encode(), b"HOME")
            return status, re.sub(rb"(?m)^fastpath: warning: .*\n", b"", text)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def end_session(session):
    """Ends what a program has left in its session."""
    try:
        os.killpg(session, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def gains_privileges(program):
    return bool(program.stat().st_mode & (stat.S_ISUID | stat.S_ISGID)) or "security.capability" in os.listxattr(program)


class Case:
    """One program with one argument. `word` says how it went."""

    def __init__(self, fastpath, program, argument):
        self.program, self.argument, self.detail = program, argument, ""
        rescue = [fastpath, "run", "--require", "--rescue", "--"]
        for _ in range(TRIES):
            plain = [outcome([], program, argument) for _ in range(2)]
            if None in plain:
                self.word = "no answer as it is"
                return
            rescued = outcome(rescue, program, argument)
            if rescued and rescued[0] == UNSERVED and plain[0][0] != UNSERVED:
                self.word, self.detail = "not served", rescued[1].decode(errors="replace").strip()
                return
            # A fault that comes in some runs only counts as well.
            if rescued is None or rescued[0] < 0 and rescued[0] not in (plain[0][0], plain[1][0]):
                break
            is_steady = plain[0] == plain[1]
            if rescued == plain[0] or not is_steady and rescued and rescued[0] in (plain[0][0], plain[1][0]):
                self.word = "same" if is_steady else "same status; output differs as it is"
                return
        self.word, self.detail = "different", f"as it is {plain[0]!r:.1500}; rescued {rescued!r:.1500}"


def run(options):
    """Runs the part. Returns its figures."""
    if os.uname().machine != "x86_64":
        raise Skipped("the programs' sites are known on x86-64 only")
    fastpath = options.fastpath.resolve()
    own = with_sites(fastpath)
    programs = elf_programs()
    # A copy that the user nobody can execute, wherever fastpath is.
    place = pathlib.Path(tempfile.mkdtemp())
    place.chmod(0o755)
    usable = shutil.copy(fastpath, place / "fastpath")
    os.chmod(usable, 0o755)
    # Each thread has its own network, without a device that is up; its children inherit that.
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count(), initializer=namespace.call, initargs=("unshare", CLONE_NEWNET)) as pool:
        work = [pool.submit(Case, usable, program, argument) for program in programs for argument in ARGUMENTS]
        cases = [each.result() for each in work]
    words = collections.Counter(case.word for case in cases)
    unserved = [case for case in cases if case.word == "not served" and not gains_privileges(case.program)]
    for case in cases:
        if case.word in ("different", "not served"):
            print(f"long rescued-programs: {case.program} {case.argument}: {case.word}: {case.detail}", flush=True)
    of_own = collections.Counter(case.word for case in cases if str(case.program.resolve()) in own)
    redirected, left = (sum(counts[which] for counts in own.values()) for which in (0, 1))
    figures = (
        f"{len(programs)} programs, {len(cases)} runs: {dict(words)}; of them {len(own)} programs with {redirected} redirected sites of "
        f"their own, {left} left alone: {dict(of_own)}"
    )
    if words["different"] or unserved or not words["same"]:
        raise Failed(f"{figures}; {len(unserved)} not served that gain no privileges")
    return figures
