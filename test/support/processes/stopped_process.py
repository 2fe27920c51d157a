# SPDX-License-Identifier: Apache-2.0
"""A process that hangs: it is there, its sockets take bytes, and nothing in it runs."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
import signal
import subprocess
import time

LIMIT_S = 60.0
STOPPED = 'T'


def halt(process: subprocess.Popen) -> None:
    """
    Stop a process and wait until it stands. One of its threads has to be woken to stop the others,
    and on a busy machine these answer a request in the meantime.
    """
    process.send_signal(signal.SIGSTOP)
    deadline = time.monotonic() + LIMIT_S
    while set(states(process.pid)) != {STOPPED}:
        assert time.monotonic() < deadline, f'not stopped: {states(process.pid)}'
        time.sleep(0.001)


def states(pid: int) -> list[str]:
    """Return the state of each thread, as one letter."""
    found = []
    for task in Path(f'/proc/{pid}/task').iterdir():
        # a thread may end meanwhile; its state stands behind its name, which may hold anything
        with suppress(OSError):
            found.append((task / 'stat').read_text().rpartition(')')[2].split()[0])
    return found
