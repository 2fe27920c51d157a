# SPDX-License-Identifier: Apache-2.0
"""One call of a client runs and at most one waits: a newer one replaces it. Pure."""

from __future__ import annotations

from typing import Generic, TypeVar

Call = TypeVar('Call')


class Turns(Generic[Call]):
    """Its owner guards it."""

    def __init__(self) -> None:
        self.running: Call | None = None
        self.waiting: Call | None = None

    @property
    def all(self) -> list[Call]:
        return [call for call in (self.running, self.waiting) if call is not None]

    def enter(self, call: Call) -> Call | None:
        """Let a call run, or wait; return the one that it replaces."""
        if self.running is None:
            self.running = call
            return None
        replaced, self.waiting = self.waiting, call
        return replaced

    def leave(self, call: Call) -> Call | None:
        """End a call, wherever it is; return the one that runs in its place."""
        if call is self.running:
            self.running, self.waiting = self.waiting, None
            return self.running
        if call is self.waiting:
            self.waiting = None
        return None
