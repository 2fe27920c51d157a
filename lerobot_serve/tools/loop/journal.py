# SPDX-License-Identifier: Apache-2.0
"""
What the loop did, one JSON line each: for a person in the morning, and for a conductor that starts
again. One process writes at a time; any may read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, UTC
from enum import auto, StrEnum
import errno
import fcntl
import json
import os
from pathlib import Path

import msgspec
from msgspec import Struct

from lerobot_serve.contract.fingerprint import digest_of
from lerobot_serve.errors import UserError

JOURNAL_FILE = 'journal.jsonl'
LINE_LIMIT, TEXT_LIMIT = 16_384, 4096


class LoopEvent(StrEnum):
    """What is recorded; beside these, the name of a step with `_failed`."""

    LOOP_STARTED = auto()
    LOOP_ENDED = auto()
    # recorded once, also after a restart: a version of the store, and the policy of slot a
    NEW_VERSION = auto()
    CHAMPION = auto()
    STALE = auto()
    GATE_ADMITTED = auto()
    GATE_REFUSED = auto()
    GATE_HELD = auto()
    GATE_TOO_FEW = auto()
    ROLLOUT_STARTED = auto()
    ROUTER_UNKNOWN = auto()
    IDLE = auto()
    ON_TRIAL = auto()
    CANDIDATE_LOST = auto()
    PROMOTED = auto()
    WATCHED = auto()
    FINISHED = auto()
    RESTORED = auto()
    # keeps its version from the robots, also after a restart
    ROLLED_BACK = auto()
    # until a person lifts that in the router
    TRIED_AGAIN = auto()
    # a version in slot a whose `finish` the loop did not see
    ADOPTED = auto()


# events after which slot a serves a version: its servers forget it when they start again
GIVEN_EVENTS = (LoopEvent.FINISHED, LoopEvent.ADOPTED)


def utc_now() -> datetime:
    """Return the time of day, for people."""
    return datetime.now(UTC)


class JournalEntry(Struct, frozen=True):
    """One event: its UTC time, name and version, and the reason in words."""

    at: str
    event: str
    version: str
    text: str


def read_journal(folder: Path) -> Iterator[JournalEntry]:
    """Yield the entries; a line that is no entry is left out. Raises UserError."""
    path = folder / JOURNAL_FILE
    try:
        with path.open('rb') as file:
            while line := file.readline(LINE_LIMIT):
                if entry := _entry(line):
                    yield entry
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f'{path} cannot be read: {error.strerror}') from None


def _entry(line: bytes) -> JournalEntry | None:
    try:
        return msgspec.convert(json.loads(line), JournalEntry)
    except (ValueError, RecursionError, msgspec.ValidationError):
        return None


class Journal:
    """Open for one conductor. A context manager."""

    def __init__(self, folder: Path, now: Callable[[], datetime] = utc_now) -> None:
        """Raises UserError if another conductor has it, or it cannot be written."""
        self._now = now
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # not inherited: a verb would keep the lock
            self._handle = os.open(
                folder / JOURNAL_FILE, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o644
            )
        except OSError as error:
            raise UserError(
                f'{folder} cannot be written: {error.strerror}; name another --folder'
            ) from None
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._handle)
            raise UserError(
                f'another loop uses {folder}; end it, or name another --folder'
            ) from None
        # a conductor that was killed, or a full disk, may have left a part of a line
        self._is_cut = self._ends_within_a_line()
        # digests; `served` is the policy that slot a had at last, `start` that of its parameters
        self.rolled_back: set[str] = set()
        self.versions: set[str] = set()
        self.served = self.start = ''
        # the newest version that slot a was given; empty before the first one
        self.champion = ''
        for entry in read_journal(folder):
            self._remember(entry)
        # of lines that the disk did not take
        self.lost = 0

    def _ends_within_a_line(self) -> bool:
        size = os.fstat(self._handle).st_size
        return bool(size) and os.pread(self._handle, 1, size - 1) != b'\n'

    def add(self, event: str, version: str = '', text: str = '') -> JournalEntry:
        """Append an entry and write it through; a full disk loses it, and it is counted."""
        at = self._now().isoformat(timespec='seconds')
        entry = JournalEntry(at, event, version, text[:TEXT_LIMIT])
        self._remember(entry)
        line = (json.dumps(msgspec.structs.asdict(entry)) + '\n').encode()
        try:
            self._write(b'\n' + line if self._is_cut else line)
        except OSError:
            self.lost += 1
        return entry

    def _write(self, line: bytes) -> None:
        """Write a line through. Raises OSError, also where the disk took a part of it."""
        written = os.write(self._handle, line)
        if written < len(line):
            self._is_cut |= written > 0
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._is_cut = False
        os.fsync(self._handle)

    def _remember(self, entry: JournalEntry) -> None:
        digest = digest_of(entry.version)
        if entry.event in (LoopEvent.TRIED_AGAIN, *GIVEN_EVENTS):
            self.rolled_back.discard(digest)
        if entry.event == LoopEvent.ROLLED_BACK:
            self.rolled_back.add(digest)
        elif entry.event == LoopEvent.LOOP_STARTED and entry.version:
            self._start_with(digest)
        elif entry.event == LoopEvent.NEW_VERSION:
            self.versions.add(digest)
        elif entry.event == LoopEvent.CHAMPION:
            self.served = digest
        elif entry.event in GIVEN_EVENTS:
            self.champion = entry.version

    def _start_with(self, digest: str) -> None:
        """A person who gave slot a another policy to start with wants that one."""
        if self.start and self.start != digest:
            self.champion = ''
        self.start = digest

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)
