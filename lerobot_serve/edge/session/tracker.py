# SPDX-License-Identifier: Apache-2.0
"""
Tracks the request in flight and matches replies to it.

Only the reply to the latest outstanding request matches; all others are dropped with a reason. An
overdue request stays the latest until the next one is sent: a reply in between still counts. Owned
by the request thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.data_path.header import Header
from lerobot_serve.edge.action_queue import QueueMark
from lerobot_serve.session.numbers import LATE_CHUNK, SessionNumbers, STALE_EPISODE

# status of a request's end, unless the server's status applies
OK, TIMED_OUT, ABANDONED = 'ok', 'timed_out', 'abandoned'
# of replies in this session to requests that have ended
TOO_LATE_REASONS = STALE_EPISODE, LATE_CHUNK


class ReplyDropped(Exception):
    """A discarded reply; `reason` is the name of its counter."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """The data of a request that its reply needs; its actions count from `marked_ns`."""

    header: Header
    # when `mark` was taken: before the frames were encoded
    marked_ns: int
    captured_ns: int
    mark: QueueMark
    episode_id: str
    # whether the chunk continues the queue, so that it may replace it
    continues_prefix: bool = False

    @property
    def sent_ns(self) -> int:
        return self.header.client_mono_ns


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


class RequestTracker(SessionNumbers):
    """The numbers of a robot's requests, with the one in flight."""

    in_flight: PendingRequest | None = None
    # whether the latest request was past its deadline
    is_overdue = False

    def track(
        self,
        *,
        sent_ns: int,
        marked_ns: int,
        captured_ns: int,
        mark: QueueMark,
        continues_prefix: bool = False,
    ) -> PendingRequest:
        """Track a new request. Raises RuntimeError while another one is in flight."""
        if self.in_flight:
            raise RuntimeError(f'request {self.in_flight.header.seq} is still in flight')
        self.in_flight = PendingRequest(
            self.next_header(sent_ns),
            marked_ns,
            captured_ns,
            mark,
            episode_id=self.episode_id,
            continues_prefix=continues_prefix,
        )
        self.is_overdue = False
        return self.in_flight

    def match_reply(self, header: Header) -> PendingRequest:
        """Return the request that this reply matches and release it. Raises ReplyDropped."""
        request, reason = self.in_flight, self.mismatch(header)
        if reason or request is None:
            raise ReplyDropped(reason or LATE_CHUNK)
        self.in_flight = None
        return request

    def release(self) -> PendingRequest | None:
        """Release the request in flight and return it; a later reply is dropped."""
        released, self.in_flight = self.in_flight, None
        return released

    def mark_overdue(self) -> None:
        """Mark the request in flight overdue; a late reply still matches."""
        self.is_overdue = True
