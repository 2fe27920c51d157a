"""
The one request in flight, and which answer counts.

An answer counts when it answers the latest outstanding seq of the current epoch and episode;
everything else is dropped with a reason. A request whose time is over stays the latest until the
next one is sent: an answer that comes meanwhile counts. Owned by the requester thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from lerobot_serve.edge.queue.action_queue import QueueMark
from lerobot_serve.wire.chunk import Chunk
from lerobot_serve.wire.header import Header

# what became of a request, where that is not what the server said
OK, TIMED_OUT, ABANDONED = 'ok', 'timed_out', 'given_up'


class ReplyDropped(Exception):
    """An answer that does not count; `reason` is one word for the counters."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """What has to be remembered of a request until its answer."""

    seq: int
    sent_ns: int
    captured_ns: int
    mark: QueueMark
    session_epoch: int
    episode: int
    episode_id: str
    # whether the chunk continues what is left to play, so that it may take its place
    guided: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class RequestEnd:
    """
    What became of a request; each that got a number has one end.

    status  OK for a chunk that is played, TIMED_OUT, GIVEN_UP, or what is wrong with the answer
    reason  why it was given up, in a word; for an answer without actions the server's words
    chunk   the answer, None where there was none
    """

    request: PendingRequest
    at_ns: int
    status: str
    reason: str = ''
    chunk: Chunk | None = None
    chunk_bytes: int | None = None


class RequestTracker:
    """Numbers requests and matches answers."""

    def __init__(self, session_epoch: int) -> None:
        self.session_epoch = session_epoch
        self.episode = 0
        self.pending: PendingRequest | None = None
        # whether the time of the pending one is over
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
        """Note a request as sent. Raises RuntimeError while another one is in flight."""
        if self.pending:
            raise RuntimeError(f'request {self.pending.seq} is still in flight')
        self._seq += 1
        where = self.session_epoch, self.episode, episode_id
        self.pending = PendingRequest(self._seq, sent_ns, captured_ns, mark, *where, guided)
        self.overdue = False
        return self.pending

    def accept(self, header: Header) -> PendingRequest:
        """
        Return the request that this answers, which is then no longer in flight. Raises Dropped.
        """
        if header.session_epoch != self.session_epoch:
            raise ReplyDropped('stale_epoch')
        if header.episode != self.episode:
            raise ReplyDropped('stale_episode')
        if self.pending is None or header.seq != self.pending.seq:
            raise ReplyDropped('late_chunk')
        return self.give_up()

    def give_up(self) -> PendingRequest | None:
        """Stop waiting, and return for what; an answer that comes later does not count."""
        pending, self.pending, self.overdue = self.pending, None, False
        return pending

    def time_out(self) -> None:
        """Note that the time of the pending request is over; a late answer still counts."""
        self.overdue = self.pending is not None

    def new_episode(self) -> int:
        """Begin the next episode and return its number."""
        self.give_up()
        self.episode += 1
        return self.episode
