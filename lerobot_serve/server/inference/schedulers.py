# SPDX-License-Identifier: Apache-2.0
"""
Choose the next batch from the queued requests.

Pure functions; the request queue calls them with its lock held, in the inference thread. A client
has at most one queued request and keeps its place if it sends a newer one, so the order of arrival
is fair: no client is served twice before all others were served once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class WaitingRequest(Protocol):
    """The fields of a request that a scheduler reads."""

    @property
    def queued_ns(self) -> int:
        """The time at which its client joined the queue, by this server's clock."""

    @property
    def runs_dry_ns(self) -> int:
        """The time at which its client runs out of actions, by this server's clock."""


@dataclass(frozen=True, slots=True)
class BatchSelection:
    """Queue positions to serve together now; if empty, select again after `wait_ns`."""

    positions: tuple[int, ...] = ()
    wait_ns: int = 0


class Scheduler(Protocol):
    """`waiting` is never empty, oldest first; `clients` is the number of open sessions."""

    def pick(self, waiting: Sequence[WaitingRequest], now_ns: int, clients: int) -> BatchSelection:
        """Return the next batch."""


class RoundRobin:
    """Serve one request at a time, in order of arrival."""

    def pick(self, waiting: Sequence[WaitingRequest], now_ns: int, clients: int) -> BatchSelection:
        return BatchSelection((0,))


class LowestQueueFirst:
    """
    Serve the client first whose queue runs dry first.

    There is no starvation: the queue of a later request runs dry later, or is already dry.
    """

    def pick(self, waiting: Sequence[WaitingRequest], now_ns: int, clients: int) -> BatchSelection:
        # ties: the oldest request
        return BatchSelection((min(range(len(waiting)), key=lambda i: waiting[i].runs_dry_ns),))


class DynamicBatching:
    """
    Up to `size` requests in one forward pass; the oldest waits at most `window_ns` for more.

    It does not wait if every client has a queued request, so a single client never waits.
    """

    def __init__(self, size: int, window_ns: int) -> None:
        self._size, self._window_ns = size, window_ns

    def pick(self, waiting: Sequence[WaitingRequest], now_ns: int, clients: int) -> BatchSelection:
        left_ns = waiting[0].queued_ns + self._window_ns - now_ns
        if len(waiting) < min(self._size, clients) and left_ns > 0:
            return BatchSelection(wait_ns=left_ns)
        return BatchSelection(tuple(range(min(self._size, len(waiting)))))


def make_scheduler(name: str, *, size: int, window_ns: int, batch_limit: int) -> Scheduler:
    """Return a scheduler by name; `batch_limit` is that of the policy, 0 for none."""
    if name == 'dynamic_batching':
        return DynamicBatching(min(size, batch_limit or size), window_ns)
    simple: dict[str, Scheduler] = {
        'round_robin': RoundRobin(),
        'lowest_queue_first': LowestQueueFirst(),
    }
    return simple[name]
