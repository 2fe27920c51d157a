# SPDX-License-Identifier: Apache-2.0
"""
The client's half of one session as a state machine: no thread, clock or socket.

Its owner reports what happened, and does what each method returns. Rows are events, columns are
states; where a cell has a dash the event is a mistake of the owner, raises KeyError and changes
nothing:

               CLOSED   OPENING  OPEN     ENDED
    REQUESTED  OPENING  OPENING  OPENING  -        another session is requested
    OPENED     -        OPEN     -        ENDED    the server opened the one requested last
    FAILED     -        CLOSED   -        ENDED    it refused, or did not respond
    LOST       CLOSED   OPENING  CLOSED   ENDED    the session is gone, or its server
    SENT       -        -        OPEN     -        a request
    END        ENDED    ENDED    ENDED    ENDED    the owner wants no more

An outcome of a session that is not the one requested last is no event: a caller that gave up may
leave a call behind, and the next one requests another session.

Whom to ask, when, how often and after which pause is for the owner to decide.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import auto, Enum
from typing import Generic, TypeVar

from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.data_path.header import Header
from lerobot_serve.contract.schema import Status
from lerobot_serve.session.numbers import LATE_CHUNK, SessionNumbers

# what an owner wants to have again with the reply to a request
Request = TypeVar('Request')


class State(Enum):
    """Whether there is a session, as far as is known."""

    CLOSED = auto()
    OPENING = auto()
    OPEN = auto()
    # nothing is requested any more
    ENDED = auto()


class Event(Enum):
    """See the module."""

    REQUESTED = auto()
    OPENED = auto()
    FAILED = auto()
    LOST = auto()
    SENT = auto()
    END = auto()


NEXT: Mapping[State, Mapping[Event, State]] = {
    State.CLOSED: {
        Event.REQUESTED: State.OPENING,
        Event.LOST: State.CLOSED,
        Event.END: State.ENDED,
    },
    State.OPENING: {
        Event.REQUESTED: State.OPENING,
        Event.OPENED: State.OPEN,
        Event.FAILED: State.CLOSED,
        Event.LOST: State.OPENING,
        Event.END: State.ENDED,
    },
    State.OPEN: {
        Event.REQUESTED: State.OPENING,
        Event.LOST: State.CLOSED,
        Event.SENT: State.OPEN,
        Event.END: State.ENDED,
    },
    State.ENDED: {
        Event.OPENED: State.ENDED,
        Event.FAILED: State.ENDED,
        Event.LOST: State.ENDED,
        Event.END: State.ENDED,
    },
}


class ReplyDropped(Exception):
    """A reply that nobody waits for; `reason` is the name of its counter."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class SessionLost(Exception):
    """The server has no session of this client; the text says why. Another one is needed."""


class SessionMachine(SessionNumbers, Generic[Request]):
    """
    See the module. Its owner guards it.

    why_lost   why there is no session, from the server; empty while nothing is known
    in_flight  the request whose reply is awaited, also after its session was lost
    """

    def __init__(self, client_id: str, session_epoch: int | None = None) -> None:
        super().__init__(client_id, session_epoch)
        self.state, self.why_lost = State.CLOSED, ''
        self.in_flight: Request | None = None

    @property
    def is_open(self) -> bool:
        return self.state is State.OPEN

    def next_session_epoch(self) -> int:
        """Request another session; return its epoch."""
        self._move(Event.REQUESTED)
        return super().next_session_epoch()

    def opened(self, session_epoch: int, schema_version: int) -> bool:
        """
        Use a session that was opened, and await no reply of the one before. Return False for one
        that nobody uses: close it.
        """
        if session_epoch != self.requested_epoch:
            return False
        self._move(Event.OPENED)
        if self.is_open:
            self.why_lost, self.in_flight = '', None
            self.begin_session(schema_version)
        return self.is_open

    def failed(self, session_epoch: int, why: str) -> None:
        """Note that a session was not opened."""
        if session_epoch == self.requested_epoch:
            self._move(Event.FAILED)
            self.why_lost = why

    def lost(self, why: str) -> None:
        """Note that the session is gone; a reply that is still on its way counts."""
        self._move(Event.LOST)
        self.why_lost = why

    def begin_episode(self, episode_id: str = '') -> None:
        """Begin the next episode, and await no reply of the one before."""
        self.in_flight = None
        super().begin_episode(episode_id)

    def sent(self, request: Request) -> None:
        """Await the reply to the request with the last header."""
        if self.in_flight is not None:
            raise RuntimeError(f'a request before {self.seq} is still in flight')
        self._move(Event.SENT)
        self.in_flight = request

    def take(self, reply: Header) -> Request:
        """Return the request that a reply belongs to; it is over. Raises ReplyDropped."""
        request, reason = self.in_flight, self.mismatch(reply)
        if reason or request is None:
            raise ReplyDropped(reason or LATE_CHUNK)
        self.in_flight = None
        return request

    def release(self) -> Request | None:
        """Return the request in flight, whose reply is not awaited any more."""
        released, self.in_flight = self.in_flight, None
        return released

    def end(self) -> None:
        """Request nothing more."""
        self._move(Event.END)
        self.in_flight = None

    def _move(self, event: Event) -> None:
        self.state = NEXT[self.state][event]


def check_session(reply: Chunk) -> None:
    """Raise SessionLost for a reply that ends its session."""
    if reply.status in (Status.NO_SESSION, Status.DRAINING):
        raise SessionLost(reply.status_text or Status(reply.status).name.lower())
