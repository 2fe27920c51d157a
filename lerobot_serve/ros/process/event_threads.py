# SPDX-License-Identifier: Apache-2.0
"""
Find out whether the middleware of this process has locked itself up.

Fast DDS has a thread of timers in each participant. A thread that learns of the end of another
process holds the lock of discovery, and waits until the thread of timers is idle; when that one
waits for the lock just then, both wait for good, and all threads that receive wait behind them
(eProsima/Fast-DDS#6502, in all versions). Such a process hears nothing any more, and others take
it for dead. The kernel shows it: a thread of timers that does not run, and waits for a lock
without a time limit. When it has nothing to do, it waits for a condition, with a time limit.

Linux on x86-64 and ARM64; elsewhere, and with another middleware, nothing is found. Plain.

Replace this process by a new one with the same command line, when nothing else helps: its
middleware hears nothing, and no call of it changes that. Plain.
"""

from __future__ import annotations

import contextlib
from contextlib import suppress
import os
from pathlib import Path
import platform
import sys
import time

from lerobot_serve.child_process import replace_by_same_command
from lerobot_serve.ros.process.service_manager import ServiceManager

TASKS = Path('/proc/self/task')
# of Fast DDS 2.14 (Jazzy) and 3 (Kilted), followed by the number of the participant
NAME = 'dds.ev.'
# looks in a row that find a thread so: it waits for a lock for microseconds
STUCK_LOOKS = 5
# threads of this name are made with a node, and hardly later
LOOKS_PER_LIST = 10
FUTEX = {'x86_64': 202, 'aarch64': 98}.get(platform.machine())
# FUTEX_WAIT, without FUTEX_PRIVATE_FLAG; glibc waits for a lock while its value is 2
COMMAND_MASK, WAIT, LOCKED = 0x7F, 0, 2


class EventThreads:
    """The threads of timers of this process. One thread."""

    def __init__(self, tasks: Path = TASKS) -> None:
        self._tasks, self._looks = tasks, 0
        # thread -> how often it was given the processor, and looks since then
        self._seen: dict[Path, tuple[str, int]] = {}

    def find_stuck(self) -> str:
        """
        Return the name of a thread that has waited for a lock since STUCK_LOOKS calls; else empty.
        Call it once a second.
        """
        if self._looks % LOOKS_PER_LIST == 0:
            found = [task for task in self._listed() if _read(task / 'comm').startswith(NAME)]
            self._seen = {task: self._seen.get(task, ('', 0)) for task in found}
        self._looks += 1
        for task in self._seen:
            if self._stuck_looks(task) >= STUCK_LOOKS:
                return _read(task / 'comm').strip()
        return ''

    def _listed(self) -> list[Path]:
        with suppress(OSError):
            return list(self._tasks.iterdir())
        return []

    def _stuck_looks(self, task: Path) -> int:
        """Return for how many looks in a row a thread has not run, and waits for a lock."""
        before, looks = self._seen[task]
        turns = _turns(_read(task / 'status'))
        is_stuck = bool(turns) and turns == before and waits_for_lock(_read(task / 'syscall'))
        looks = looks + 1 if is_stuck else 0
        self._seen[task] = turns, looks
        return looks


def waits_for_lock(call: str) -> bool:
    """Return whether a system call, as the kernel shows it, waits for a lock without a limit."""
    try:
        number, _, command, value, limit = call.split()[:5]
        return (
            int(number) == FUTEX
            and int(command, 16) & COMMAND_MASK == WAIT
            and (int(value, 16), int(limit, 16)) == (LOCKED, 0)
        )
    except ValueError:
        # it runs, or has ended
        return False


def _turns(status: str) -> str:
    return ' '.join(line for line in status.splitlines() if 'ctxt_switches' in line)


def _read(file: Path) -> str:
    with suppress(OSError):
        return file.read_text()
    return ''


STARTS, STARTS_VARIABLE = 3, 'LEROBOT_SERVE_STARTS'
# after so long the next one is not in a row with the last
STEADY_S = 60.0


class OwnRestart:
    """Counts the starts in a row, in a variable of the environment. Any thread."""

    def __init__(self, manager: ServiceManager) -> None:
        self._manager, self._begun_s = manager, time.monotonic()
        # not for children
        starts = os.environ.pop(STARTS_VARIABLE, '')
        self._starts = int(starts) if starts.isdecimal() else 0

    def start_again(self, why: str) -> None:
        """Replace this process, at most STARTS times in a row; return when that is not allowed."""
        is_in_row = time.monotonic() - self._begun_s < STEADY_S
        starts = self._starts + 1 if is_in_row else 1
        if starts > STARTS:
            print(f'{why}; it has started again {STARTS} times in a row', file=sys.stderr)
            return
        print(f'{why}, and starts again', file=sys.stderr, flush=True)
        sys.stdout.flush()
        os.environ[STARTS_VARIABLE] = str(starts)
        # the new process has the same number
        self._manager.give_back(os.environ)
        for handle in map(int, os.listdir('/proc/self/fd')):
            # ports and locks of the middleware, which would stay with the new process
            if handle > 2:
                with contextlib.suppress(OSError):
                    os.set_inheritable(handle, False)
        replace_by_same_command()
