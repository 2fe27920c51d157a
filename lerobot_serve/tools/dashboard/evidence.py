# SPDX-License-Identifier: Apache-2.0
"""
What traces and captures say about an incident. Threads of the HTTP server.

`lerobot-serve diagnose` explains it in a process with a time limit: traces of a day take long, and
nothing else waits for them. Of the folder of captures only files that a policy server names so are
there for the page: no path, no link, no other file.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime, timezone
import os
from pathlib import Path
import re
import shlex
import stat
import threading
from typing import BinaryIO
from urllib.parse import quote

from lerobot_serve.child_process import DEVNULL, PIPE, Process, start, TimeoutExpired
from lerobot_serve.contract.names import file_name
from lerobot_serve.server.observability.request_capture import CAPTURE_FILE_NAME
from lerobot_serve.tools.processes import verb_command
from lerobot_serve.trace.format.incident_file import SUFFIX

LIMIT_S, TEXT_LIMIT, KEPT = 60.0, 200_000, 50
# exit status of diagnose without a record of the robot or the time
NOT_COVERED = 4
NO_FOLDER = (
    'there is no explanation: the dashboard was started without --trace-folder, the folder in '
    'which the traces of robots, router and servers are'
)
NO_ROBOT = (
    'diagnose explains robots; for slots and rollouts: `lerobot-serve rollout history`, for a '
    'server its log'
)
BUSY = 'another explanation is being made; ask again when it is done'


@dataclass(frozen=True, slots=True)
class IncidentPlace:
    """Where an incident is in traces: the client, empty for no robot, and its time in UTC."""

    client: str
    instant: str


class Explanations:
    """One process at a time; texts are kept. Any thread; `close` in one."""

    def __init__(self, folder: Path | None, limit_s: float = LIMIT_S) -> None:
        self._folder, self._limit_s = folder, limit_s
        self._alone, self._lock = threading.Lock(), threading.Lock()
        self._known: OrderedDict[str, str] = OrderedDict()
        self._running: Process[str] | None = None
        self._is_closed = False

    def close(self) -> None:
        """End a process that runs, and start none from now on."""
        with self._lock:
            self._is_closed = True
            if self._running:
                self._running.kill()

    def explain(self, number: str, place: IncidentPlace) -> str:
        """Return the explanation of an incident, or why there is none. Blocks."""
        if known := self._known.get(number):
            return known
        if self._folder is None:
            return NO_FOLDER
        if not place.client:
            return NO_ROBOT
        if not self._alone.acquire(blocking=False):
            return BUSY
        try:
            text, is_final = self._run(self._folder, place)
            if is_final:
                self._known[number] = text
                if len(self._known) > KEPT:
                    self._known.popitem(last=False)
        finally:
            self._alone.release()
        return text

    def _run(self, folder: Path, place: IncidentPlace) -> tuple[str, bool]:
        """Run the verb; return its text, and whether another run would give the same."""
        words = [
            *('diagnose', str(folder.absolute())),
            *(f'--client={place.client}', f'--at={place.instant}'),
        ]
        with self._lock:
            if self._is_closed:
                return 'the dashboard ends', False
            self._running = process = start(
                verb_command(words),
                stdin=DEVNULL,
                stdout=PIPE,
                stderr=PIPE,
                text=True,
                errors='replace',
                start_new_session=True,
            )
        try:
            written, complaint = process.communicate(timeout=self._limit_s)
        except TimeoutExpired:
            process.kill()
            process.communicate()
            return (
                f'there is no explanation within {self._limit_s:g} s: the traces are large; run '
                f'`{shlex.join(["lerobot-serve", *words])}`',
                True,
            )
        finally:
            self._running = None
        if process.returncode in (0, NOT_COVERED):
            # a trace is written some seconds later
            return written[:TEXT_LIMIT].strip(), process.returncode == 0
        return f'diagnose failed: {complaint.strip()[-2000:] or process.returncode}', False


AROUND_S, SHOWN = 120.0, 50
WHEN = '%Y%m%dT%H%M%S.%f'
PARTIAL, ALL = '.part', 'all'


class Captures:
    """`folder` is None without one."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def of_incident(self, place: IncidentPlace) -> list[dict[str, object]]:
        """Return the captures of a robot around the time of an incident, the nearest first."""
        if self._folder is None or not place.client:
            return []
        at = datetime.strptime(place.instant, '%Y-%m-%dT%H:%M:%SZ').replace(tzinfo=timezone.utc)
        found = []
        for entry in self._entries():
            when = written_at(entry.name, place.client)
            if when is not None and abs((when - at).total_seconds()) <= AROUND_S:
                found.append((abs(when - at), entry))
        nearest = sorted(found, key=lambda each: (each[0], each[1].name))[:SHOWN]
        return list(filter(None, (_row(entry) for _, entry in nearest)))

    def _entries(self) -> list[os.DirEntry[str]]:
        """Return the captures that are files; none when the folder is not there."""
        assert self._folder
        try:
            with os.scandir(self._folder) as entries:
                return [
                    entry
                    for entry in entries
                    if is_capture_name(entry.name) and entry.is_file(follow_symlinks=False)
                ]
        except OSError:
            return []

    def open(self, name: str) -> BinaryIO | None:
        """Return the capture of a name; None when there is none, or it is a link."""
        if self._folder is None or not is_capture_name(name):
            return None
        try:
            handle = os.open(self._folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return None
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            return None
        return os.fdopen(handle, 'rb')


def _row(entry: os.DirEntry[str]) -> dict[str, object] | None:
    """Return what the page shows of a capture; None for one that its server has removed."""
    try:
        size_bytes = entry.stat(follow_symlinks=False).st_size
    except OSError:
        return None
    url = f'/api/captures?name={quote(entry.name)}'
    return {'name': entry.name, 'bytes': size_bytes, 'url': url}


def is_capture_name(name: str) -> bool:
    """Return whether a policy server gives this name to a capture that is complete."""
    is_plain = name.isascii() and name.isprintable() and '/' not in name
    return is_plain and not name.endswith(PARTIAL) and bool(CAPTURE_FILE_NAME.fullmatch(name))


def written_at(name: str, client: str) -> datetime | None:
    """Return when a capture was made; None for one of another robot."""
    moment, _, rest = name.partition('-')
    # the whole name: that of another robot may begin with this one and a dash
    own = rf'({re.escape(file_name(client))}|{ALL})-\d+-[a-z_]+{re.escape(SUFFIX)}'
    if not re.fullmatch(own, rest):
        return None
    try:
        return datetime.strptime(moment.removesuffix('Z'), WHEN).replace(tzinfo=timezone.utc)
    except ValueError:
        return None
