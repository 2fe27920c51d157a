# SPDX-License-Identifier: Apache-2.0
"""
Run a command and end all that it started: a program of its own, which imports this file alone.

    python3 -I guard.py WORD...

The bytes of its standard input are signals for the process group of the command: I for SIGINT, T
for SIGTERM, K for SIGKILL of every process below this one. The end of the input, which is the end
of the learner however it died, means K. Orphans come back to this process, so that workers with
sessions of their own, as those of torchrun, are found; each session gets the niceness of its
processes. Its exit status is that of the command, as a shell has it. Main thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path
import select
import signal
import subprocess
import sys

NOT_STARTED, BY_SIGNAL = 127, 128
SET_PARENT_DEATH_SIGNAL, SET_CHILD_SUBREAPER = 1, 36
SIGNALS = {b'I': signal.SIGINT, b'T': signal.SIGTERM}
KILL = b'K'
# a worker that begins a session of its own is found after so long
LOOK_S = 5.0


def main(words: list[str]) -> int:
    """Return the exit status of the command."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        # not SIG_IGN, which the command would inherit; the learner decides when it ends
        signal.signal(number, lambda *_: None)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    set_process_option(SET_CHILD_SUBREAPER, 1)
    try:
        child = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=die_with_parent
        )
    except OSError as error:
        print(f'{words[0]} cannot be started: {error.strerror}', flush=True)
        return NOT_STARTED
    status = wait(child.pid, woken)
    end_all()
    return status


def die_with_parent() -> None:
    """Let the kernel kill this process when the guard itself is killed."""
    set_process_option(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def share_niceness(process: int) -> bool:
    """
    Give the session of a process the niceness of the process; return whether nothing is left to
    do. Linux shares the CPU among sessions first, and a niceness counts within one only
    (`man 7 sched`: autogroup).
    """
    group = Path(f'/proc/{process}/autogroup')
    try:
        wanted = os.getpriority(os.PRIO_PROCESS, process)
        if int(group.read_text().split()[-1]) != wanted:
            group.write_text(f'{wanted}\n')
    except BlockingIOError:
        # the kernel allows it ten times a second
        return False
    except (OSError, ValueError, IndexError):
        # without autogroups, or an ended process
        return True
    return True


def set_process_option(option: int, value: int) -> None:
    """Call prctl, where the system has it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def wait(process: int, woken: int) -> int:
    """Return the exit status of the command; forward signals until then."""
    listened = [sys.stdin.fileno(), woken]
    while True:
        for one in descendants():
            share_niceness(one)
        ready, _, _ = select.select(listened, [], [], LOOK_S)
        if woken in ready:
            os.read(woken, 4096)
        if sys.stdin.fileno() in ready:
            asked = os.read(sys.stdin.fileno(), 1)
            forward(asked, process)
            if not asked:
                listened.remove(sys.stdin.fileno())
        status = reap(process)
        if status is not None:
            return status


def forward(asked: bytes, process: int) -> None:
    """Send a signal to the group of the command, or kill all."""
    if asked in SIGNALS:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process, SIGNALS[asked])
    elif asked in (KILL, b''):
        for one in descendants():
            kill(one)


def reap(process: int) -> int | None:
    """Collect processes that ended; return the exit status of the command once it has one."""
    found = None
    with contextlib.suppress(ChildProcessError):
        while True:
            ended, status = os.waitpid(-1, os.WNOHANG)
            if not ended:
                break
            if ended == process:
                code = os.waitstatus_to_exitcode(status)
                found = code if code >= 0 else BY_SIGNAL - code
    return found


def end_all() -> None:
    """Kill what the command left, until nothing is below this process."""
    while below := descendants():
        for one in below:
            kill(one)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, 0)


def kill(process: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def descendants() -> list[int]:
    """Return all processes below this one."""
    parents: dict[int, list[int]] = {}
    for entry in Path('/proc').glob('[0-9]*'):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # the name of a program may have spaces and brackets
            fields = (entry / 'stat').read_text().rpartition(')')[2].split()
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found, waiting = [], [os.getpid()]
    while waiting:
        below = parents.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
