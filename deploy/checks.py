"""What deploy/test and deploy/kubernetes/test share: one line for each check, as scripts/test counts them."""

import shutil
import subprocess
import time

# Longer than any step takes on a busy machine.
LIMIT = 300
failures = 0


class Skipped(Exception):
    """Raised with what a check lacks here."""


def check(name, *tools):
    def run(body):
        global failures
        missing = [tool for tool in tools if not shutil.which(tool)]
        try:
            if missing:
                raise Skipped(f"there is no {missing[0]} here (scripts/setup all installs it)")
            body()
            print(f"ok: {name}", flush=True)
        except Skipped as why:
            print(f"SKIPPED: {name}: {why}", flush=True)
        except Exception as why:  # whatever it was, the others are checked too
            failures += 1
            print(f"FAILED: {name}: {why}", flush=True)

    return run


def outcome(*words, stdin=None, **options):
    return subprocess.run(words, input=stdin, capture_output=True, text=True, timeout=LIMIT, **options)


def command(*words, stdin=None, **options):
    done = outcome(*words, stdin=stdin, **options)
    assert done.returncode == 0, f"{' '.join(words)}: {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout


def until(what, holds, limit=120):
    end = time.monotonic() + limit
    last = None
    while time.monotonic() < end:
        try:
            last = holds()
            if last:
                return last
        except OSError as error:
            last = error
        time.sleep(0.1)
    raise AssertionError(f"{what}: not within {limit} s (last: {last})")
