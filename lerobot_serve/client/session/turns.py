# SPDX-License-Identifier: Apache-2.0
"""
One request of a session in flight and at most one waiting: a newer one replaces the waiting one.

Any thread calls any method; a thread of the link delivers replies. Nothing here waits: each change
of a turn sets its signal, and its owner looks at the turn again.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
import threading

from lerobot_serve.client.steps import Waker
from lerobot_serve.contract.data_path.header import Header
from lerobot_serve.session.numbers import LATE_CHUNK, mismatch

# the name of LATE_CHUNK in the counts of a session
LATE_REPLY = 'late_reply'


@dataclass(slots=True, eq=False)
class Turn:
    """
    One call, owned by its caller.

    may_send    it is the one in flight
    superseded  why it ended without a reply, empty while it may have one
    request     the header of what was sent, None before
    reply       the bytes of the reply and when they arrived
    is_lost     the server went away after the request was sent
    """

    signal: Waker
    may_send: bool = False
    superseded: str = ''
    request: Header | None = None
    reply: tuple[bytes, int] | None = None
    is_lost: bool = False


class RequestTurns:
    """The turns of one session. `dropped` counts the replies that no turn waits for, by reason."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._in_flight: Turn | None = None
        self._waiting: Turn | None = None
        self.dropped: Counter[str] = Counter()
        self.superseded = 0

    def enter(self, signal: Waker) -> Turn:
        """Return a new turn: it may send, or waits and replaces the one that waited."""
        turn = Turn(signal)
        with self._lock:
            if self._in_flight is None:
                self._in_flight, turn.may_send = turn, True
            else:
                if self._waiting:
                    self._supersede(self._waiting, 'a newer request of this session replaced it')
                self._waiting = turn
        return turn

    def expect(self, turn: Turn, request: Header) -> bool:
        """Await the reply to a request; False for a turn that was superseded meanwhile."""
        with self._lock:
            turn.request, turn.reply, turn.is_lost = request, None, False
            return turn is self._in_flight and not turn.superseded

    def leave(self, turn: Turn) -> None:
        """End a turn, whatever its result; the waiting one may send."""
        with self._lock:
            if turn is self._waiting:
                self._waiting = None
            elif turn is self._in_flight:
                self._in_flight, self._waiting = self._waiting, None
                if self._in_flight:
                    self._in_flight.may_send = True
                    self._in_flight.signal.set()

    def on_reply(self, header: Header, raw: bytes, arrived_ns: int) -> None:
        """Deposit a reply; one that nobody waits for is counted."""
        with self._lock:
            turn = self._in_flight
            request = turn.request if turn else None
            reason = LATE_CHUNK
            if request:
                sent = request.session_epoch, request.episode, request.seq
                reason = mismatch(sent, header)
            if turn and not reason and turn.reply is None and not turn.superseded:
                turn.reply = raw, arrived_ns
                turn.signal.set()
            else:
                self.dropped[LATE_REPLY if reason in ('', LATE_CHUNK) else reason] += 1

    def drop(self, reason: str) -> None:
        """Count a message that is not a reply."""
        with self._lock:
            self.dropped[reason] += 1

    def on_server_change(self, *, is_lost: bool) -> None:
        """Wake the turn in flight: its server went away, or is back."""
        with self._lock:
            if self._in_flight:
                self._in_flight.is_lost |= is_lost and self._in_flight.request is not None
                self._in_flight.signal.set()

    def end_all(self, reason: str) -> None:
        """Supersede both turns; they wake and leave."""
        with self._lock:
            for turn in self._turns():
                self._supersede(turn, reason)

    def end(self, signal: Waker, reason: str) -> None:
        """Supersede the turns of one signal."""
        with self._lock:
            for turn in self._turns():
                if turn.signal is signal:
                    self._supersede(turn, reason)

    def _turns(self) -> list[Turn]:
        """With the lock."""
        return [turn for turn in (self._in_flight, self._waiting) if turn]

    def _supersede(self, turn: Turn, reason: str) -> None:
        """With the lock."""
        self.superseded += not turn.superseded
        turn.superseded = turn.superseded or reason
        turn.signal.set()
