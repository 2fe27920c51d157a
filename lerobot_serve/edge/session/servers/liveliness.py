# SPDX-License-Identifier: Apache-2.0
"""
Liveliness of the session's server: whether its writer to this robot is alive.

Each server replies on its own topic, so a lost writer is a lost server. The thread `replies` calls
`update`, the request thread everything else. Plain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from enum import Enum, unique


@unique
class Loss(Enum):
    """What a link knows of a server whose last writer has gone."""

    CLOSED = 'server closed the session or exited'
    EXPIRED = 'liveliness lease expired ({lease_s:g} s): killed, suspended or unreachable'
    # over Zenoh, which reports no reason
    GONE = 'server exited, was killed, is suspended or unreachable'
    AMBIGUOUS = 'another server has the same name'


class ServerLiveliness:
    """
    Counts live writers and losses per server; no call blocks. `on_change` wakes the request thread
    when a server was lost or came back.
    """

    def __init__(self, lease_s: float, on_change: Callable[[], None]) -> None:
        self._lease_s, self._on_change = lease_s, on_change
        self._alive: Counter[str] = Counter()
        self._losses: Counter[str] = Counter()
        self._how: dict[str, Loss] = {}
        self._server, self._losses_before = '', 0

    def update(self, server: str, *, alive: int, change: int, loss: Loss) -> None:
        """
        Record how many writers of a server are alive, and how one was lost if one was.
        """
        was_lost = change < 0 and alive == 0
        if change:
            self._how[server] = loss
        self._alive[server] = alive
        self._losses[server] += was_lost
        if was_lost or change > 0:
            self._on_change()

    def begin_session(self, server: str) -> None:
        """Start a session with this server; earlier losses do not count."""
        self._server, self._losses_before = server, self._losses[server]

    @property
    def has_lease_expired(self) -> bool:
        """Whether the lease of its last writer expired."""
        return self._how.get(self._server) is Loss.EXPIRED

    def loss_reason(self) -> str:
        """Return why the server of the session is lost; empty if it is alive."""
        if self._losses[self._server] == self._losses_before or self._alive[self._server]:
            return ''
        return self._how[self._server].value.format(lease_s=self._lease_s)
