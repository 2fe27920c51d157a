# SPDX-License-Identifier: Apache-2.0
"""
Tracks the request in flight and matches replies to it.

A reply matches if it has the latest outstanding seq of the current epoch and episode; all others
are dropped with a reason. An overdue request stays the latest until the next one is sent: a reply
in between still counts. Owned by the request thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.data_path.header import Header
from lerobot_serve.edge.queue.action_queue import QueueMark

# status of a request's end, unless the server's status applies
OK, TIMED_OUT, ABANDONED = 'ok', 'timed_out', 'abandoned'
# of replies in this session to requests that have ended
STALE_EPISODE, LATE_CHUNK = TOO_LATE_REASONS = 'stale_episode', 'late_chunk'


class ReplyDropped(Exception):
    """A discarded reply; `reason` is the name of its counter."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """The data of a request that its reply needs; its actions count from `marked_ns`."""

    seq: int
    sent_ns: int
    # when `mark` was taken: before the frames were encoded
    marked_ns: int
    captured_ns: int
    mark: QueueMark
    session_epoch: int
    episode: int
    episode_id: str
    # whether the chunk continues the queue, so that it may replace it
    continues_prefix: bool = False


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
    """Numbers sessions, episodes and requests, and matches replies."""

    def __init__(self, session_epoch: int) -> None:
        self.session_epoch = session_epoch
        # requested last; `session_epoch` is that of the open session
        self._requested_epoch = session_epoch
        self.episode = 0
        self.in_flight: PendingRequest | None = None
        # whether the latest request was past its deadline
        self.is_overdue = False
        self._seq = 0

    def next_session_epoch(self) -> int:
        """
        Return the epoch of the next session to request.

        Until it is open, the reply to the request in flight still matches.
        """
        self._requested_epoch = (self._requested_epoch + 1) % 2**32
        return self._requested_epoch

    def begin_session(self) -> None:
        """Start the session requested last; replies of earlier sessions no longer match."""
        self.session_epoch, self.episode, self._seq = self._requested_epoch, 0, 0

    def track(
        self,
        *,
        sent_ns: int,
        marked_ns: int,
        captured_ns: int,
        mark: QueueMark,
        episode_id: str,
        continues_prefix: bool = False,
    ) -> PendingRequest:
        """Track a new request. Raises RuntimeError while another one is in flight."""
        if self.in_flight:
            raise RuntimeError(f'request {self.in_flight.seq} is still in flight')
        self._seq += 1
        self.in_flight = PendingRequest(
            self._seq,
            sent_ns,
            marked_ns,
            captured_ns,
            mark,
            session_epoch=self.session_epoch,
            episode=self.episode,
            episode_id=episode_id,
            continues_prefix=continues_prefix,
        )
        self.is_overdue = False
        return self.in_flight

    def match_reply(self, header: Header) -> PendingRequest:
        """
        Return the request that this reply matches and release it. Raises ReplyDropped.
        """
        if header.session_epoch != self.session_epoch:
            raise ReplyDropped('stale_epoch')
        if header.episode != self.episode:
            raise ReplyDropped(STALE_EPISODE)
        request = self.in_flight
        if request is None or header.seq != request.seq:
            raise ReplyDropped(LATE_CHUNK)
        self.release()
        return request

    def release(self) -> PendingRequest | None:
        """Release the request in flight and return it; a later reply is dropped."""
        released, self.in_flight = self.in_flight, None
        return released

    def mark_overdue(self) -> None:
        """Mark the request in flight overdue; a late reply still matches."""
        self.is_overdue = True

    def new_episode(self) -> int:
        """Begin the next episode and return its number."""
        self.release()
        self.episode += 1
        return self.episode
