# SPDX-License-Identifier: Apache-2.0
"""
The captures of policy servers in one folder: those of an incident, and one of them by its name.

Only files that a policy server names so are there for the page: no path, no link, no other file.
Threads of the HTTP server.
"""

from __future__ import annotations

from datetime import datetime, timezone
import os
from pathlib import Path
import re
import stat
from typing import BinaryIO
from urllib.parse import quote

from lerobot_serve.contract.names import file_name
from lerobot_serve.server.observability.request_capture import CAPTURE_FILE_NAME
from lerobot_serve.tools.dashboard.evidence.explanations import IncidentPlace
from lerobot_serve.trace.format.incident_file import SUFFIX

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
