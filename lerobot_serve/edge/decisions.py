# SPDX-License-Identifier: Apache-2.0
"""
What holds for one robot until a person lifts it: each decision is a file of the state folder,
which survives the process, and a power failure.

That a file exists decides, so no damage to its content lifts a decision; the content says why. A
thread of its own writes, so that neither a control step nor an operator waits for a disk that
hangs: `decide` and `lift` return at once, and the newest of them reaches the disk.
"""

from __future__ import annotations

import contextlib
from enum import Enum
import os
from pathlib import Path
import threading

from lerobot_serve.atomic_file import sync_folder

# how long a service waits for the disk, and after how long a failed write is tried again
DISK_LIMIT_S = RETRY_S = 1.0
REASON_LIMIT = 1000
CREATE = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK


class Decision(Enum):
    """The name of the file, the service that lifts the decision, and what was decided."""

    TAKEN_OVER = 'taken_over', '~/hand_back', 'A person has taken over this robot.'
    PAUSED = 'paused', '~/resume', 'An operator has paused this robot.'
    LATCHED = 'latched', '~/reset_cage', 'The safety cage of this robot is latched.'
    STOPPED = 'stopped', '~/reset', 'The stop service of this robot was called.'

    def __init__(self, file: str, lifted_by: str, text: str) -> None:
        self.file, self.lifted_by, self.text = file, lifted_by, text

    def __str__(self) -> str:
        return self.file.replace('_', ' ')


class RobotDecisions:
    """
    Any thread; those of the past are there from the start. Without a `folder` nothing is kept.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        # never held during an access to the disk
        self._changed = threading.Condition()
        self._reasons: dict[Decision, str] = {}
        # not on the disk as it is here, and why not if it was tried
        self._unsaved: set[Decision] = set()
        self._faults: dict[Decision, str] = {}
        self._is_closed = False
        self._writer: threading.Thread | None = None
        for decision in Decision if folder else ():
            reason = read_reason(self.path(decision))
            if reason is not None:
                self._reasons[decision] = reason

    def path(self, decision: Decision) -> Path:
        """Return the file of a decision."""
        return (self._folder or Path()) / decision.file

    def start(self) -> None:
        """Start to write."""
        self._writer = threading.Thread(target=self._write, name='decisions', daemon=True)
        self._writer.start()

    def close(self) -> None:
        """Write what is not yet written, unless the disk hangs; nothing changes afterwards."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._writer:
            self._writer.join(DISK_LIMIT_S)

    def holds(self, decision: Decision) -> bool:
        """Return whether it was decided, and not lifted."""
        return decision in self._reasons

    def reason(self, decision: Decision) -> str:
        """Return why; empty if it is not known, or was not decided."""
        return self._reasons.get(decision, '')

    def decide(self, decision: Decision, reason: str = '') -> None:
        """Decide, or write again what was decided: the first reason counts. Never waits."""
        with self._changed:
            self._reasons.setdefault(decision, reason)
            self._request(decision)

    def lift(self, decision: Decision) -> None:
        """End a decision. Never waits."""
        with self._changed:
            self._reasons.pop(decision, None)
            self._request(decision)

    def settle(self, decision: Decision) -> str:
        """
        Wait until it is on the disk, DISK_LIMIT_S at most; return what a restart would change,
        and why, empty for nothing.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: decision not in self._unsaved or decision in self._faults, DISK_LIMIT_S
            )
            return self._warning(decision)

    @property
    def warning(self) -> str:
        """What a restart would change, and why; empty for nothing."""
        with self._changed:
            return '. '.join(self._warning(each) for each in Decision if each in self._unsaved)

    def _warning(self, decision: Decision) -> str:
        if decision not in self._unsaved:
            return ''
        path = self.path(decision)
        why = self._faults.get(decision, f'{path}: the disk has not responded yet')
        if decision in self._reasons:
            return f'A restart of the edge controller ends it: {why}'
        return f'After a restart of the edge controller it is {decision} again: {why}'

    def _request(self, decision: Decision) -> None:
        if self._folder:
            self._unsaved.add(decision)
            self._faults.pop(decision, None)
            self._changed.notify_all()

    # thread `decisions`

    def _write(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(self._has_work, RETRY_S if self._faults else None)
                due = {each: self._reasons.get(each) for each in self._unsaved}
                is_last = self._is_closed
            for decision, reason in due.items():
                fault = save(decision, self.path(decision), reason)
                self._saved(decision, reason, fault)
            if is_last:
                return

    def _has_work(self) -> bool:
        return self._is_closed or bool(self._unsaved - self._faults.keys())

    def _saved(self, decision: Decision, reason: str | None, fault: str) -> None:
        with self._changed:
            if self._reasons.get(decision) != reason:
                # decided otherwise meanwhile
                return
            if fault:
                self._faults[decision] = fault
            else:
                self._unsaved.discard(decision)
                self._faults.pop(decision, None)
            self._changed.notify_all()


def read_reason(file: Path) -> str | None:
    """Return why it was decided, empty if that is not known; None if it was not decided."""
    try:
        file.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        # in doubt it was
        return ''
    try:
        handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            _, _, reason = os.read(handle, 4 * REASON_LIMIT).decode().partition('\n')
        finally:
            os.close(handle)
    except (OSError, UnicodeDecodeError):
        return ''
    reason = reason.strip()[:REASON_LIMIT]
    return reason if reason.isprintable() else ''


def save(decision: Decision, file: Path, reason: str | None) -> str:
    """Bring a decision to the disk; return why that failed, empty otherwise."""
    try:
        if reason is None:
            _remove(file)
        else:
            removed_by = f'The service {decision.lifted_by} removes this file.'
            _create(file, f'{decision.text} {removed_by}\n{reason[:REASON_LIMIT]}\n')
    except OSError as error:
        done = 'removed' if reason is None else 'written'
        return f'{file} is not {done} ({error.strerror or error})'
    return ''


def _create(file: Path, text: str) -> None:
    # first of all: a kill finds the file from here on
    try:
        handle = os.open(file, CREATE, 0o644)
    except FileNotFoundError:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(file, CREATE, 0o644)
    try:
        # a full disk takes the file without the reason
        with contextlib.suppress(OSError):
            os.truncate(handle, os.pwrite(handle, text.encode(errors='replace'), 0))
        os.fsync(handle)
    finally:
        os.close(handle)
    sync_folder(file.parent)


def _remove(file: Path) -> None:
    try:
        file.unlink()
    except (FileNotFoundError, NotADirectoryError):
        return
    sync_folder(file.parent)
