# SPDX-License-Identifier: Apache-2.0
"""
The client's half of one session as a state machine: no thread, clock or socket.

Its owner reports what happened, and does what the methods return. When to request a session or
actions, of which server, how often and after which pause is for the owner to decide.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import auto, Enum
from typing import Generic, TypeVar

from msgspec.structs import replace

from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.data_path.header import Header
from lerobot_serve.contract.limits import SCHEMA_VERSION
from lerobot_serve.contract.records import OpenSessionRequest, OpenSessionResponse
from lerobot_serve.contract.schema import Status
from lerobot_serve.contract.services.session import ServerUnreachable, SessionRefused
from lerobot_serve.session.numbers import LATE_CHUNK, SessionNumbers

# what an owner gets back with the reply to a request
Call = TypeVar('Call')


class State(Enum):
    """Whether there is a session, as far as is known; after ENDED nothing is requested."""

    CLOSED = auto()
    OPENING = auto()
    OPEN = auto()
    ENDED = auto()


class Event(Enum):
    """What happens to a session, or to the one that was requested last."""

    REQUESTED = auto()
    OPENED = auto()
    # the server refused it, or did not respond
    FAILED = auto()
    # the server has it no more, or went away
    LOST = auto()
    # a request for actions
    SENT = auto()
    # its owner wants no more
    END = auto()


CLOSED, OPENING, OPEN, ENDED = State
# the state after each event; one that is missing is a mistake of the owner, and changes nothing
NEXT = {
    # again: one who gave up has left a call behind
    Event.REQUESTED: {CLOSED: OPENING, OPENING: OPENING, OPEN: OPENING},
    Event.OPENED: {OPENING: OPEN, ENDED: ENDED},
    Event.FAILED: {OPENING: CLOSED, ENDED: ENDED},
    Event.LOST: {CLOSED: CLOSED, OPENING: OPENING, OPEN: CLOSED, ENDED: ENDED},
    Event.SENT: {OPEN: OPEN},
    Event.END: {CLOSED: ENDED, OPENING: ENDED, OPEN: ENDED, ENDED: ENDED},
}


class ReplyDropped(Exception):
    """A reply that nobody waits for; `reason` is the name of its counter."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class SessionLost(Exception):
    """The server has no session of this client; the text says why. Another one is needed."""


class SessionMachine(SessionNumbers, Generic[Call]):
    """
    See the module. Its owner guards it. A method that is not allowed now raises KeyError.

    requested  the session that was requested last, which its server may have: to be closed
    agreement  what was agreed for the session that was open last
    why_lost   why there is no session, from the server; empty while nothing is known
    in_flight  the call whose reply is awaited, also after its session was lost
    """

    def __init__(self, client_id: str, session_epoch: int | None = None) -> None:
        super().__init__(client_id, session_epoch)
        self.state, self.why_lost = CLOSED, ''
        self.requested: OpenSessionRequest | None = None
        self.agreement: OpenSessionResponse | None = None
        self.in_flight: Call | None = None

    @property
    def is_open(self) -> bool:
        return self.state is OPEN

    # the session

    def request(
        self, terms: OpenSessionRequest, reply_topic: Callable[[int], str]
    ) -> OpenSessionRequest:
        """Return the request of another session on these terms: send it."""
        self._move(Event.REQUESTED)
        epoch = self.next_session_epoch()
        self.requested = replace(
            terms,
            schema_version=SCHEMA_VERSION,
            session_epoch=epoch,
            reply_topic=reply_topic(epoch),
        )
        return self.requested

    def opened(self, request: OpenSessionRequest, agreement: OpenSessionResponse) -> bool:
        """
        Use a session that was opened, and await no reply of the one before. Return False for one
        that nobody uses: close it.
        """
        if request is not self.requested:
            return False
        self._move(Event.OPENED)
        if self.is_open:
            self.agreement, self.why_lost, self.in_flight = agreement, '', None
            self.begin_session(agreement.schema_version)
        return self.is_open

    def failed(
        self, request: OpenSessionRequest, error: SessionRefused | ServerUnreachable
    ) -> None:
        """Note why a session was not opened."""
        if request is self.requested:
            self._move(Event.FAILED)
            self.why_lost = str(error)
            if isinstance(error, SessionRefused):
                self.requested = None

    def lost(self, why: str) -> None:
        """Note why the session is gone; a reply that is still on its way counts."""
        self._move(Event.LOST)
        self.why_lost = why

    def end(self) -> None:
        """Await and request nothing more; the owner closes what was requested."""
        self._move(Event.END)
        self.in_flight = None

    # its episodes and requests

    def begin_episode(self, episode_id: str = '') -> None:
        """Begin the next episode, and await no reply of the one before."""
        self.in_flight = None
        super().begin_episode(episode_id)

    def sent(self, call: Call) -> None:
        """Await the reply to the request with the last header."""
        if self.in_flight is not None:
            raise RuntimeError('a request is still in flight')
        self._move(Event.SENT)
        self.in_flight = call

    def take(self, reply: Header) -> Call:
        """Return the call that a reply ends. Raises ReplyDropped."""
        call, reason = self.in_flight, self.mismatch(reply)
        if reason or call is None:
            raise ReplyDropped(reason or LATE_CHUNK)
        self.in_flight = None
        return call

    def release(self) -> Call | None:
        """Return the call in flight, whose reply is not awaited any more."""
        released, self.in_flight = self.in_flight, None
        return released

    def _move(self, event: Event) -> None:
        self.state = NEXT[event][self.state]


def check_session(reply: Chunk) -> None:
    """Raise SessionLost for a reply that ends its session."""
    if reply.status in (Status.NO_SESSION, Status.DRAINING):
        raise SessionLost(reply.status_text or Status(reply.status).name.lower())
