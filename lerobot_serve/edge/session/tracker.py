# SPDX-License-Identifier: Apache-2.0
"""
Tracks the request in flight and matches replies to it.

A reply matches if it has the latest outstanding seq of the current epoch and episode; all others
are dropped with a reason. An overdue request stays the latest until the next one is sent: a reply
in between still counts. Owned by the request thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from lerobot_serve.edge.queue.action_queue import QueueMark
from lerobot_serve.wire.chunk import Chunk
from lerobot_serve.wire.header import Header

# status of a request's end, unless the server's status applies
OK, TIMED_OUT, ABANDONED = 'ok', 'timed_out', 'abandoned'


class ReplyDropped(Exception):
    """A discarded reply; `reason` is the name of its counter."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """The data of a request that its reply needs."""

    seq: int
    sent_ns: int
    captured_ns: int
    mark: QueueMark
    session_epoch: int
    episode: int
    episode_id: str
    # whether the chunk continues the queue, so that it may replace it
    guided: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class RequestEnd:
    """
    The end of a request; each request with a seq has exactly one.

    status  OK for a merged chunk, TIMED_OUT, ABANDONED, or the error of the reply
    reason  why it was abandoned, as one word; for a reply without actions the server's text
    chunk   the reply, None without one
    """

    request: PendingRequest
    at_ns: int
    status: str
    reason: str = ''
    chunk: Chunk | None = None
    chunk_bytes: int | None = None


class RequestTracker:
    """Numbers requests and matches replies."""

    def __init__(self, session_epoch: int) -> None:
        self.session_epoch = session_epoch
        self.episode = 0
        self.pending: PendingRequest | None = None
        # whether the pending request is past its deadline
        self.overdue = False
        self._seq = 0

    def begin(
        self,
        *,
        sent_ns: int,
        captured_ns: int,
        mark: QueueMark,
        episode_id: str,
        guided: bool = False,
    ) -> PendingRequest:
        """Track a new request. Raises RuntimeError while another one is in flight."""
        if self.pending:
            raise RuntimeError(f'request {self.pending.seq} is still in flight')
        self._seq += 1
        where = self.session_epoch, self.episode, episode_id
        self.pending = PendingRequest(self._seq, sent_ns, captured_ns, mark, *where, guided)
        self.overdue = False
        return self.pending

    def accept(self, header: Header) -> PendingRequest:
        """
        Return the request that this reply matches and release it. Raises ReplyDropped.
        """
        if header.session_epoch != self.session_epoch:
            raise ReplyDropped('stale_epoch')
        if header.episode != self.episode:
            raise ReplyDropped('stale_episode')
        if self.pending is None or header.seq != self.pending.seq:
            raise ReplyDropped('late_chunk')
        return self.give_up()

    def give_up(self) -> PendingRequest | None:
        """Release the pending request and return it; a later reply is dropped."""
        pending, self.pending, self.overdue = self.pending, None, False
        return pending

    def time_out(self) -> None:
        """Mark the pending request overdue; a late reply still counts."""
        self.overdue = self.pending is not None

    def new_episode(self) -> int:
        """Begin the next episode and return its number."""
        self.give_up()
        self.episode += 1
        return self.episode
