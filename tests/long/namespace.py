# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A PID and a mount namespace for this program, so that no process that it starts outlives it."""

import ctypes
import os
import shutil
import signal
import sys
import tempfile

CLONE_NEWNS = 0x00020000
CLONE_NEWPID = 0x20000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_PRIVATE = 2, 4, 8, 16384, 1 << 18
PR_SET_PDEATHSIG = 1

libc = ctypes.CDLL(None, use_errno=True)


def call(name, *arguments):
    if getattr(libc, name)(*arguments) != 0:
        error = ctypes.get_errno()
        sys.exit(f"long: {name}: {os.strerror(error)}")


def exit_as(child):
    """Waits for all children, and exits with the status of this one."""
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def enter():
    """Returns in a process of new namespaces, with its own temporary directory.

    The calling process waits outside. If it ends, process 1 of the namespace is killed, and with it every process
    there."""
    directory = tempfile.mkdtemp(prefix="fastpath-long-")
    call("unshare", CLONE_NEWPID)
    init = os.fork()
    if init != 0:
        end_with(init, directory)
    # Ctrl-C reaches only the process outside, which then ends this one.
    os.setsid()
    call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    call("unshare", CLONE_NEWNS)
    call("mount", None, b"/", None, MS_REC | MS_PRIVATE, None)
    call("mount", b"proc", b"/proc", b"proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, None)
    call("mount", b"tmpfs", directory.encode(), b"tmpfs", MS_NOSUID | MS_NODEV, b"mode=1777")
    os.environ["TMPDIR"] = tempfile.tempdir = directory
    # Process 1 waits for orphans, and for the process that does the work.
    worker = os.fork()
    if worker != 0:
        exit_as(worker)


def end_with(init, directory):
    def end(number, _frame):
        os.kill(init, signal.SIGKILL)
        os.waitpid(init, 0)
        shutil.rmtree(directory, ignore_errors=True)
        os._exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    _, status = os.waitpid(init, 0)
    shutil.rmtree(directory, ignore_errors=True)
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)
