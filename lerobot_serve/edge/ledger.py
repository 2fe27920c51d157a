"""
The one request in flight, and which answer counts.

An answer counts when it answers the latest outstanding seq of the current epoch and episode;
everything else is dropped with a reason. Owned by the requester thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from lerobot_serve.edge.queue.actions import Mark
from lerobot_serve.wire.header import Header


class Dropped(Exception):
    """An answer that does not count; `reason` is one word for the counters."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Pending:
    """What has to be remembered of a request until its answer."""

    seq: int
    sent_ns: int
    captured_ns: int
    mark: Mark


class Ledger:
    """Numbers requests and matches answers."""

    def __init__(self, session_epoch: int) -> None:
        self.session_epoch = session_epoch
        self.episode = 0
        self.pending: Pending | None = None
        self._seq = 0

    def begin(self, *, sent_ns: int, captured_ns: int, mark: Mark) -> Pending:
        """Note a request as sent. Raises RuntimeError while another one is in flight."""
        if self.pending:
            raise RuntimeError(f'request {self.pending.seq} is still in flight')
        self._seq += 1
        self.pending = Pending(self._seq, sent_ns, captured_ns, mark)
        return self.pending

    def accept(self, header: Header) -> Pending:
        """
        Return the request that this answers, which is then no longer in flight. Raises Dropped.
        """
        if header.session_epoch != self.session_epoch:
            raise Dropped('stale_epoch')
        if header.episode != self.episode:
            raise Dropped('stale_episode')
        if self.pending is None or header.seq != self.pending.seq:
            raise Dropped('late_chunk')
        pending, self.pending = self.pending, None
        return pending

    def give_up(self) -> None:
        """Stop waiting; an answer that comes later does not count."""
        self.pending = None

    def new_episode(self) -> int:
        """Begin the next episode and return its number."""
        self.pending = None
        self.episode += 1
        return self.episode
