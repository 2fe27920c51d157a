# SPDX-License-Identifier: Apache-2.0
"""
Liveliness of the session's server: whether its writer to this robot is alive.

Each server replies on its own topic, so a lost writer is a lost server. The thread `answers` calls
`note`, the request thread everything else. Plain.
"""

from __future__ import annotations

from collections import Counter


class ServerLiveliness:
    """Counts live writers and losses per server; no call blocks."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._alive: Counter[str] = Counter()
        self._losses: Counter[str] = Counter()
        self._silent: set[str] = set()
        self._server, self._losses_before = '', 0

    def note(self, server: str, *, alive: int, change: int, is_silent: bool) -> bool:
        """
        Record how many writers of a server are alive; return whether it was lost or came back.

        `is_silent`: a writer exists but its lease expired, instead of being closed.
        """
        was_lost = change < 0 and alive == 0
        if change:
            (self._silent.add if is_silent else self._silent.discard)(server)
        self._alive[server] = alive
        self._losses[server] += was_lost
        return was_lost or change > 0

    def begin(self, server: str) -> None:
        """Start a session with this server; earlier losses do not count."""
        self._server, self._losses_before = server, self._losses[server]

    @property
    def is_silent(self) -> bool:
        """Whether the lease of its last writer expired."""
        return self._server in self._silent

    def loss(self) -> str:
        """Return why the server of the session is lost; empty if it is alive."""
        if self._losses[self._server] == self._losses_before or self._alive[self._server]:
            return ''
        if self.is_silent:
            return (
                f'liveliness lease expired ({self._lease_s:g} s): killed, suspended or unreachable'
            )
        return 'server closed the session or exited'
