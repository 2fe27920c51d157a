# SPDX-License-Identifier: Apache-2.0
"""
The document of the fleet, and what its rows are made with: rounded numbers, bounded texts, and
when a source counts as silent.

The poll thread deposits rows and takes turns; each turn has a document that is never changed
afterwards, and the merge patch (RFC 7396) from the one before. In a merge patch null removes a
key, so a document holds no null outside of arrays: a value that is unknown is absent. What is the
same object in both documents is skipped, so a difference costs what changed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
import math
from statistics import median
from typing import Any, NamedTuple

Json = dict[str, Any]


def without_nulls(document: Mapping[str, Any]) -> Json:
    """Return an object without the keys whose value is None, at every depth of objects."""
    return {
        key: without_nulls(value) if isinstance(value, Mapping) else value
        for key, value in document.items()
        if value is not None
    }


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> Json:
    """Return the merge patch from one document without nulls to another; empty when equal."""
    patch: Json = {key: None for key in old if key not in new}
    for key, value in new.items():
        before = old.get(key)
        if before is value:
            continue
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            if inner := difference(before, value):
                patch[key] = inner
        elif before != value or type(before) is not type(value):
            patch[key] = value
    return patch


SECTIONS = ('robots', 'routers', 'servers', 'learners', 'incidents', 'episodes')
# without any change, a patch with the time shows a viewer that the stream is alive
LIVENESS_MS = 900


class Turn(NamedTuple):
    """One state of the document, and how it differs from the one before."""

    document: Json
    patch: Json


class FleetDocument:
    """See the module. Rows are replaced, never changed in place."""

    def __init__(self, site: Json, now_ms: int) -> None:
        self._sections: dict[str, Json] = {name: {} for name in SECTIONS}
        self._changed: set[str] = set()
        self._site = site
        self._newest: Json = self._document(now_ms, 0)

    @property
    def newest(self) -> Json:
        return self._newest

    def row(self, section: str, key: str) -> Json | None:
        """Return the present row."""
        found: Json | None = self._sections[section].get(key)
        return found

    def put(self, section: str, key: str, row: Json) -> None:
        """Add or replace a row."""
        if self._sections[section].get(key) != row:
            self._owned(section)[key] = row

    def remove(self, section: str, key: str) -> None:
        if key in self._sections[section]:
            del self._owned(section)[key]

    def replace_section(self, section: str, rows: Json) -> None:
        """Replace all rows; `rows` must not change afterwards."""
        if rows is not self._sections[section]:
            self._sections[section] = rows
            self._changed.discard(section)

    def turn(self, now_ms: int, viewers: int = 0) -> Turn | None:
        """Return the next state; None when nothing changed and the last one is recent."""
        document = self._document(now_ms, viewers)
        patch = difference(self._newest, document)
        is_quiet = patch.keys() <= {'now_ms'}
        if is_quiet and now_ms - self._newest['now_ms'] < LIVENESS_MS:
            return None
        self._newest = document
        return Turn(document, {'now_ms': now_ms, **patch})

    def _owned(self, section: str) -> dict[str, Any]:
        """Return a section that no published document holds."""
        if section not in self._changed:
            self._sections[section] = dict(self._sections[section])
            self._changed.add(section)
        return self._sections[section]

    def _document(self, now_ms: int, viewers: int) -> Json:
        self._changed.clear()
        return {'now_ms': now_ms, 'site': self._site, **self._sections, 'viewers': viewers}


TEXT_LIMIT = 1024
CUT = '...'
# a document must be valid JSON and readable: nothing measured here is larger
NUMBER_LIMIT = 1e15


def rounded(value: float | None, digits: int) -> float | None:
    """Return a number with so many decimals; None for NaN, infinity and what is out of range."""
    if value is None or not math.isfinite(value) or abs(value) > NUMBER_LIMIT:
        return None
    # adding 0.0 turns -0.0 into 0.0
    return round(value, digits) + 0.0


def significant(value: float | None, digits: int = 3) -> float | None:
    """Return a number with so many significant digits; None for what is not a number."""
    found = rounded(value, 9)
    return None if found is None else float(f'{found:.{digits}g}')


def bounded(text: str, limit: int = TEXT_LIMIT) -> str:
    """Return a text of at most `limit` characters; bounds of messages are not enforced by ROS."""
    return text if len(text) <= limit else text[: limit - len(CUT)] + CUT


LEAST_LIMIT_S, PERIODS = 2.0, 3.0
KEPT_INTERVALS = 5
# a source that is gone for longer leaves the document
FORGET_S = 600.0


class Source:
    """
    The messages of one source by the steady clock; one thread.

    The usual period is the median of its last intervals, so that one long gap does not count as
    usual. Before a second message there is none: a latched state may be of a process that hangs.
    """

    def __init__(self) -> None:
        self.last_s: float | None = None
        self._intervals: deque[float] = deque(maxlen=KEPT_INTERVALS)

    def on_message(self, now_s: float) -> None:
        if self.last_s is not None:
            self._intervals.append(now_s - self.last_s)
        self.last_s = now_s

    @property
    def limit_s(self) -> float:
        """The time without a message after which it is silent [s]."""
        if not self._intervals:
            return LEAST_LIMIT_S
        return max(LEAST_LIMIT_S, PERIODS * median(self._intervals))

    def is_silent(self, now_s: float, publishers: int) -> bool:
        """Return whether it is silent: at once without a publisher; False before any message."""
        if self.last_s is None:
            return False
        gap_s = now_s - self.last_s
        # the limit of hundreds of sources that are heard of is never computed
        return publishers == 0 or (gap_s > LEAST_LIMIT_S and gap_s > self.limit_s)

    def is_gone(self, now_s: float, publishers: int) -> bool:
        """Return whether it leaves the document; one that hangs has a publisher and stays."""
        is_old = self.last_s is None or now_s - self.last_s > FORGET_S
        return publishers == 0 and is_old
