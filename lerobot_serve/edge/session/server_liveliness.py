"""
Whether the server of the session shows signs of life: whether its writer to this robot is alive.

Each server answers on a topic of its own, so that a lost writer is a lost server. The answers
thread notes, the request thread does the rest. Plain.
"""

from __future__ import annotations

from collections import Counter


class ServerLiveliness:
    """See the module; nothing in it waits."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._alive: Counter[str] = Counter()
        self._losses: Counter[str] = Counter()
        self._silent: set[str] = set()
        self._server, self._losses_before = '', 0

    def note(self, server: str, *, alive: int, change: int, is_silent: bool) -> bool:
        """
        Note how many writers of a server are alive; return whether it was lost or came back.

        `is_silent` where one still exists and its lease ran out, instead of having been closed.
        """
        was_lost = change < 0 and alive == 0
        if change:
            (self._silent.add if is_silent else self._silent.discard)(server)
        self._alive[server] = alive
        self._losses[server] += was_lost
        return was_lost or change > 0

    def begin(self, server: str) -> None:
        """A session with this one is asked for: what was before is none of it."""
        self._server, self._losses_before = server, self._losses[server]

    @property
    def is_silent(self) -> bool:
        """Whether the lease of its last writer ran out."""
        return self._server in self._silent

    def loss(self) -> str:
        """Return why the server of the session is lost, in words; empty when it is not."""
        if self._losses[self._server] == self._losses_before or self._alive[self._server]:
            return ''
        if self.is_silent:
            return f'no sign of life for {self._lease_s:g} s: killed, stopped or cut off'
        return 'it closed the session or ended'
