# SPDX-License-Identifier: Apache-2.0
"""
The client's half of one session as a state machine: no thread, clock or socket.

Its owner reports what happened, and does what the methods return. When to request a session or
actions, of which server, how often and after which pause is for the owner to decide.

A reply matches if it has the epoch, the episode and the seq of the request that was sent last. The
epoch of a session counts once the session is open: until then the reply to a request of the one
before still matches.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import auto, Enum
import secrets
from typing import Generic, TypeVar

from msgspec.structs import replace

from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.data_path.header import Header
from lerobot_serve.contract.limits import SCHEMA_VERSION
from lerobot_serve.contract.names import default_episode_id
from lerobot_serve.contract.records import OpenSessionRequest, ResetEpisodeRequest
from lerobot_serve.contract.schema import Flag, MsgType, Status
from lerobot_serve.contract.services.session import EPOCHS, ServerUnreachable, SessionRefused

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

# why a reply does not match: of another session, another episode, another request
STALE_EPOCH, STALE_EPISODE, LATE_CHUNK = 'stale_epoch', 'stale_episode', 'late_chunk'
# of replies that end their session
SESSION_ENDING = Status.NO_SESSION, Status.DRAINING
# longest time for which a used up quota holds requests back; then one is tried
MAX_HOLD_S = 10.0


class ReplyDropped(Exception):
    """A reply that nobody waits for; `reason` is the name of its counter."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class SessionLost(Exception):
    """The server has no session of this client; the text says why. Another one is needed."""


class SessionMachine(Generic[Call]):
    """
    See the module. Its owner guards it. A method that is not allowed now raises KeyError.

    requested        the session requested last, which its server may have: to be closed
    requested_epoch  of the session requested last, which may not be open yet
    why_lost         why there is no session, from the server; empty while nothing is known
    episode_id       of the present episode
    awaits_start     no reply has shown yet that the server knows the start of the episode
    in_flight        the call whose reply still counts, also after its session was lost
    is_overdue       whether the deadline of the call sent last has passed
    unanswered_s     for how long calls were in flight that ended early, since the last reply
    """

    def __init__(self, client_id: str, session_epoch: int | None = None) -> None:
        self.client_id, self.state, self.why_lost = client_id, CLOSED, ''
        # a client that restarts must not continue the epochs of its predecessor
        self.session_epoch = secrets.randbits(32) if session_epoch is None else session_epoch
        self.requested_epoch = self.session_epoch
        self.requested: OpenSessionRequest | None = None
        self.episode = self.seq = self._episodes = self._schema_version = 0
        self.episode_id, self.awaits_start = '', True
        self.in_flight: Call | None = None
        self.is_overdue, self.unanswered_s = False, 0.0
        # a used up quota holds requests of this session back until then
        self._hold_until_ns = 0

    @property
    def is_open(self) -> bool:
        return self.state is OPEN

    @property
    def awaits_reply(self) -> bool:
        """Whether the reply to the call in flight is in time, as far as is known."""
        return self.is_open and self.in_flight is not None and not self.is_overdue

    # the session

    def begin_request(self) -> int:
        """Return the epoch of another session: request it."""
        self._move(Event.REQUESTED)
        self.requested_epoch = (self.requested_epoch + 1) % EPOCHS
        return self.requested_epoch

    def request(
        self, terms: OpenSessionRequest, reply_topic: Callable[[int], str]
    ) -> OpenSessionRequest:
        """Return the request of another session on these terms: send it."""
        epoch = self.begin_request()
        self.requested = replace(
            terms,
            schema_version=SCHEMA_VERSION,
            session_epoch=epoch,
            reply_topic=reply_topic(epoch),
        )
        return self.requested

    def opened(self, epoch: int, schema_version: int) -> bool:
        """
        Use a session that was opened, and await no reply of the one before; the episode continues
        in it. Return False for one that is not used: close it.
        """
        if epoch != self.requested_epoch:
            return False
        self._move(Event.OPENED)
        if self.is_open:
            self.why_lost, self.in_flight = '', None
            self.session_epoch, self._schema_version = epoch, schema_version
            self.episode = self.seq = self._hold_until_ns = 0
            self.unanswered_s = 0.0
        return self.is_open

    def failed(self, epoch: int, error: SessionRefused | ServerUnreachable) -> None:
        """Note why a session was not opened."""
        if epoch == self.requested_epoch:
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
        """
        Begin the next episode, with an id that is unique in the fleet unless one is given, and
        await no reply of the one before.
        """
        self.in_flight, self.awaits_start = None, True
        self.episode += 1
        self._episodes += 1
        self.episode_id = episode_id or default_episode_id(
            self.client_id, self.session_epoch, self._episodes
        )

    def reset_request(self) -> ResetEpisodeRequest:
        """Return the announcement of the present episode."""
        return ResetEpisodeRequest(
            self.client_id, self.session_epoch, self.episode, self.episode_id
        )

    def next_header(self, now_ns: int) -> Header:
        """Return the header of the next request."""
        self.seq += 1
        return Header(
            seq=self.seq,
            client_mono_ns=now_ns,
            session_epoch=self.session_epoch,
            episode=self.episode,
            schema_version=self._schema_version,
            msg_type=MsgType.OBSERVATION,
            flags=Flag.EPISODE_START if self.awaits_start else Flag.NONE,
        )

    def sent(self, call: Call) -> None:
        """Await the reply to the request with the last header."""
        if self.in_flight is not None:
            raise RuntimeError('a request is still in flight')
        self._move(Event.SENT)
        self.in_flight, self.is_overdue = call, False

    def overdue(self) -> None:
        """The call in flight is past its deadline; its reply counts until the next is sent."""
        self.is_overdue = True

    def mismatch(self, reply: Header) -> str:
        """Return why a reply is not that to the request sent last; empty if it is."""
        if reply.session_epoch != self.session_epoch:
            return STALE_EPOCH
        if reply.episode != self.episode:
            return STALE_EPISODE
        return '' if reply.seq == self.seq else LATE_CHUNK

    def take(self, reply: Header) -> Call:
        """Return the call that a reply ends. Raises ReplyDropped."""
        call, reason = self.in_flight, self.mismatch(reply)
        if reason != STALE_EPOCH:
            # a server replies in this session, even where the reply comes too late
            self.unanswered_s = 0.0
        if reason or call is None:
            raise ReplyDropped(reason or LATE_CHUNK)
        self.in_flight = None
        return call

    def release(self) -> Call | None:
        """Return the call in flight, whose reply is not awaited any more."""
        released, self.in_flight = self.in_flight, None
        return released

    # quotas

    def hold(self, now_ns: int, retry_after_s: float) -> None:
        """Hold requests of this session back for as long as its server says, within bounds."""
        self._hold_until_ns = now_ns + int(min(retry_after_s, MAX_HOLD_S) * 1e9)

    def held_s(self, now_ns: int) -> float:
        """Return how much longer requests are held back [s]; 0 or less: not any more."""
        return (self._hold_until_ns - now_ns) / 1e9

    def _move(self, event: Event) -> None:
        self.state = NEXT[event][self.state]


def check_session(reply: Chunk) -> None:
    """Raise SessionLost for a reply that ends its session."""
    if reply.status in SESSION_ENDING:
        raise SessionLost(reply.status_text or Status(reply.status).name.lower())
