# SPDX-License-Identifier: Apache-2.0
"""
The newest incidents, and what an explanation of each needs. The poll thread.

What repeats is counted into one incident, so that a robot whose cage trips in each step does not
push all others out.
"""

from __future__ import annotations

from datetime import datetime, timezone
from itertools import count
from typing import NamedTuple

from lerobot_serve.tools.dashboard.document.incident_rules import IncidentFinding
from lerobot_serve.tools.dashboard.document.merge_patch import Json
from lerobot_serve.tools.dashboard.document.printed_numbers import bounded
from lerobot_serve.tools.dashboard.evidence.explanations import IncidentPlace

KEPT = 200
# the same source, kind and severity within this time is the same incident
REPEAT_MS = 60_000


class Moment(NamedTuple):
    """One moment: on the steady clock, as local time of day, and in UTC."""

    at_ms: int
    of_day: str
    instant: str


# times for people; nothing is measured or compared with them


def time_of_day() -> str:
    """Return the local time of day, for example 18:02:11."""
    return datetime.now().astimezone().strftime('%H:%M:%S')


def instant() -> str:
    """Return date and time in UTC, for example 2026-11-23T18:00:00Z."""
    return datetime.now(timezone.utc).strftime('%Y-%m-%dT%H:%M:%SZ')


class Incidents:
    """Numbered from 1; rows are replaced, never changed."""

    def __init__(self) -> None:
        self.rows: Json = {}
        self._numbers = count(1)
        # source, kind and severity -> the number of the last one
        self._last: dict[tuple[str, str, str], str] = {}
        self._places: dict[str, IncidentPlace] = {}

    def place(self, number: str) -> IncidentPlace | None:
        """Return where an incident is in traces; None for one that is not there. Any thread."""
        return self._places.get(number)

    def add(self, who: str, finding: IncidentFinding, moment: Moment, client: str = '') -> None:
        """Add an incident; `client` is the name of its robot in traces."""
        key = (who, finding.kind, finding.severity)
        number, rows = self._last.get(key, ''), dict(self.rows)
        last = rows.get(number)
        if last and moment.at_ms - last['at_ms'] < REPEAT_MS:
            times = last.get('count', 1) + 1
            text = bounded(f'{finding.text} ({times} times since {last["at"]})')
            rows[number] = {**last, 'text': text, 'count': times}
        else:
            number = self._last[key] = str(next(self._numbers))
            self._places[number] = IncidentPlace(client, moment.instant)
            rows[number] = {
                'at': moment.of_day,
                'at_ms': moment.at_ms,
                'kind': finding.kind,
                'severity': finding.severity,
                'who': who,
                'text': bounded(finding.text),
            }
        while len(rows) > KEPT:
            # the oldest: rows are in the order of their numbers
            number = next(iter(rows))
            del rows[number], self._places[number]
        if len(self._last) > 2 * KEPT:
            self._last = {k: each for k, each in self._last.items() if each in rows}
        self.rows = rows
