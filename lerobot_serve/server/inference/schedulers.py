"""
Whose turn it is: which of the waiting requests the policy answers next, and with which others.

Pure functions of what waits; the mailbox calls them with its lock held, in the inference thread.
Each client has at most one request waiting, and keeps its place in the line when it asks again. So
the order of arrival is fair as it is: nobody is served twice before all others were served once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class WaitingRequest(Protocol):
    """What a scheduler may know of a request."""

    since_ns: int
    """When its client joined the line, by this server's clock."""
    runs_dry_ns: int
    """When its robot has nothing left to play, by this server's clock."""


@dataclass(frozen=True, slots=True)
class BatchSelection:
    """Positions in the line to serve together now; none means: look again after `wait_ns`."""

    positions: tuple[int, ...] = ()
    wait_ns: int = 0


class Scheduler(Protocol):
    """The seam: `waiting` is never empty, the longest first; so many `clients` have a session."""

    def pick(self, waiting: Sequence[WaitingRequest], now_ns: int, clients: int) -> BatchSelection:
        """Return who is served next."""


class RoundRobin:
    """One after the other, each client once before anybody twice."""

    def pick(self, waiting: Sequence[WaitingRequest], now_ns: int, clients: int) -> BatchSelection:
        return BatchSelection((0,))


class EarliestDry:
    """
    The robot first whose queue runs dry first.

    Nobody waits for ever: what arrives later is dry later, or already dry now.
    """

    def pick(self, waiting: Sequence[WaitingRequest], now_ns: int, clients: int) -> BatchSelection:
        # of several the first in the line
        return BatchSelection((min(range(len(waiting)), key=lambda i: waiting[i].runs_dry_ns),))


class MicroBatch:
    """
    Up to `size` requests in one forward pass; the first waits at most `window_ns` for company.

    It waits for nobody when every client is already in the line, so a lone robot never waits.
    """

    def __init__(self, size: int, window_ns: int) -> None:
        self._size, self._window_ns = size, window_ns

    def pick(self, waiting: Sequence[WaitingRequest], now_ns: int, clients: int) -> BatchSelection:
        left_ns = waiting[0].since_ns + self._window_ns - now_ns
        if len(waiting) < min(self._size, clients) and left_ns > 0:
            return BatchSelection(wait_ns=left_ns)
        return BatchSelection(tuple(range(min(self._size, len(waiting)))))


def make_scheduler(name: str, *, size: int, window_ns: int, batch_limit: int) -> Scheduler:
    """Return a scheduler by its name; `batch_limit` is the policy's, 0 for none."""
    if name == 'micro_batch':
        return MicroBatch(min(size, batch_limit or size), window_ns)
    return {'round_robin': RoundRobin, 'earliest_dry': EarliestDry}[name]()
