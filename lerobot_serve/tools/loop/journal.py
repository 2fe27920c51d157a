# SPDX-License-Identifier: Apache-2.0
"""
What the loop did, one JSON line each: for a person in the morning, and for a conductor that starts
again. One process writes at a time; any may read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime, UTC
import errno
import fcntl
import json
import os
from pathlib import Path
from types import TracebackType

from lerobot_serve.contract.fingerprint import digest_of
from lerobot_serve.errors import UserError

JOURNAL_FILE = 'journal.jsonl'
LINE_LIMIT, TEXT_LIMIT = 16_384, 4096
# an event that keeps its version from the robots, also after a restart
ROLLED_BACK = 'rolled_back'
# until a person lifts that in the router
TRIED_AGAIN = 'tried_again'
# what is recorded once, also after a restart: a version of the store, and the policy of slot a
NEW_VERSION, CHAMPION = 'new_version', 'champion'
LOOP_STARTED, LOOP_ENDED, FINISHED = 'loop_started', 'loop_ended', 'finished'
GATE_REFUSED, GATE_HELD = 'gate_refused', 'gate_held'
# a version in slot a whose `finish` the loop did not see
ADOPTED = 'adopted'
# events after which slot a serves a version: its servers forget it when they start again
GIVEN_EVENTS = (FINISHED, ADOPTED)


def utc_now() -> datetime:
    """Return the time of day, for people."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Entry:
    """One event: its UTC time, name and version, and the reason in words."""

    at: str
    event: str
    version: str = ''
    text: str = ''


def read_journal(folder: Path) -> Iterator[Entry]:
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


def _entry(line: bytes) -> Entry | None:
    try:
        values = json.loads(line)
        fields = [values[name] for name in ('at', 'event', 'version', 'text')]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return Entry(*fields) if all(isinstance(each, str) for each in fields) else None


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

    def add(self, event: str, version: str = '', text: str = '') -> Entry:
        """Append an entry and write it through; a full disk loses it, and it is counted."""
        at = self._now().isoformat(timespec='seconds')
        entry = Entry(at, event, version, text[:TEXT_LIMIT])
        self._remember(entry)
        line = (json.dumps(asdict(entry)) + '\n').encode()
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

    def _remember(self, entry: Entry) -> None:
        digest = digest_of(entry.version)
        if entry.event in (TRIED_AGAIN, *GIVEN_EVENTS):
            self.rolled_back.discard(digest)
        if entry.event == ROLLED_BACK:
            self.rolled_back.add(digest)
        elif entry.event == LOOP_STARTED and entry.version:
            self._start_with(digest)
        elif entry.event == NEW_VERSION:
            self.versions.add(digest)
        elif entry.event == CHAMPION:
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._handle)
