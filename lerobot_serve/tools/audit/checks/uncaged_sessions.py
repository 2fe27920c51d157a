# SPDX-License-Identifier: Apache-2.0
"""
Count the sessions without safety cage and fallback ladder: those of callers of a gateway and of
Python clients.

Routers and servers record their requests; no edge controller records what they executed, so that
no check about commands covers them. One thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from lerobot_serve.trace.format.records import PlacementRecord, RequestRecord, TraceRecord

# how the client_id of such a session begins -> what it came through
UNCAGED = {'gateway/': 'a gateway', 'client/': 'the Python client'}


@dataclass(frozen=True, slots=True)
class UncagedSessions:
    """Callers without a cage, their sessions, and what they came through."""

    callers: int
    sessions: int
    through: str = ''

    @property
    def text(self) -> str:
        """What the reader of a report must know; empty without such sessions."""
        if not self.callers:
            return ''
        sessions = '1 session' if self.sessions == 1 else f'{self.sessions} sessions'
        callers = '1 caller' if self.callers == 1 else f'{self.callers} callers'
        return (
            f'{sessions} of {callers} came through {self.through}, without safety cage and '
            'fallback ladder: what these callers executed is not recorded and not judged.'
        )


class UncagedSessionCounter:
    """Observes the records of all runs."""

    def __init__(self) -> None:
        # client -> epochs of its sessions
        self._epochs: dict[str, set[int | None]] = {}

    def observe(self, record: TraceRecord) -> None:
        """Note the session of a request or placement."""
        if not isinstance(record, (RequestRecord, PlacementRecord)):
            return
        client_id = record.client_id
        if client_id.startswith(tuple(UNCAGED)):
            self._epochs.setdefault(client_id, set()).add(record.session_epoch)

    def found(self) -> UncagedSessions:
        """Return the counts."""
        through = [
            text
            for prefix, text in UNCAGED.items()
            if any(c.startswith(prefix) for c in self._epochs)
        ]
        sessions = sum(map(len, self._epochs.values()))
        return UncagedSessions(len(self._epochs), sessions, ' or '.join(through))
