# SPDX-License-Identifier: Apache-2.0
"""
The calls of one session as plans (see steps.py): open, predict, begin an episode, close.

Any number of threads or tasks run them; callbacks of the link deposit. Every wait ends with the
deadline of its call.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
from functools import partial
import threading
import time

from lerobot_serve.client.errors import (
    ServerUnavailable,
    SessionRejected,
    TooLate,
    TRANSIENT,
    WrongObservation,
    WrongSettings,
)
from lerobot_serve.client.link import CLOSE_TIMEOUT_S, ServerLink
from lerobot_serve.client.results import Prediction
from lerobot_serve.client.session.inputs import Observed
from lerobot_serve.client.session.replies import prediction_of, read_chunk
from lerobot_serve.client.session.state import SessionSettings, SessionState, Turn
from lerobot_serve.client.steps import Blocking, Pause, Plan, Waker
from lerobot_serve.contract.errors import Unencodable
from lerobot_serve.contract.limits import ID_LIMIT
from lerobot_serve.contract.names import is_printable
from lerobot_serve.contract.records import OpenSessionRequest
from lerobot_serve.contract.services.session import ServerUnreachable, SessionRefused
from lerobot_serve.links.link import LinkCallbacks, Presence
from lerobot_serve.session.machine import SessionLost

# between attempts to open a session, doubled each time
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 0.5
# a session is not opened again in less than this
LAST_ATTEMPT_S = 0.05
MATCH_TIMEOUT_S = 3.0
# for a server that loses each session that it opens
SESSION_ATTEMPTS = 5
WENT_AWAY = 'the server went away'
# returns a link and what releases it
MakeLink = Callable[[LinkCallbacks], tuple[ServerLink, Callable[[], None]]]


class SessionPlans:
    """See the module. `make_link` builds the link of this session with its callbacks."""

    def __init__(
        self,
        make_link: MakeLink,
        settings: SessionSettings,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.state = SessionState(settings)
        self._machine = self.state.machine
        # another session may have its name
        self.is_released = False
        self._clock, self._ending = clock, threading.Lock()
        self._link, self._release = make_link(
            LinkCallbacks(self._on_message, self._on_message, self._on_presence)
        )
        self.signal = self._link.signal

    # threads of the link

    def _on_message(self, raw: bytes) -> None:
        self.state.on_message(raw, self._clock())

    def _on_presence(self, presence: Presence) -> None:
        self.state.server_changed('' if presence is Presence.THERE else WENT_AWAY)

    # plans

    def open(self, timeout_s: float, signal: Waker) -> Plan[None]:
        """Open the session. Raises SessionRejected and ServerUnavailable."""
        turn = self.state.enter(signal)
        try:
            yield from self._ensure_open(turn, self._deadline_ns(timeout_s))
        finally:
            self.state.leave(turn)

    def predict(
        self, observed: Observed, task: str | None, timeout_s: float, signal: Waker
    ) -> Plan[Prediction]:
        """Request a chunk. Raises PolicyClientError."""
        deadline_ns = self._deadline_ns(timeout_s)
        turn = self.state.enter(signal, observed)
        try:
            yield from self._wait(turn, deadline_ns, lambda: turn is self.state.turns.running)
            for _ in range(SESSION_ATTEMPTS):
                yield from self._ensure_open(turn, deadline_ns)
                sent_ns = yield Blocking(partial(self._send, turn, task))
                yield from self._wait(turn, deadline_ns, lambda: not self._awaits_reply(turn))
                with contextlib.suppress(SessionLost):
                    return self._result(turn, sent_ns)
        finally:
            self.state.leave(turn)
        raise ServerUnavailable(
            f'the session was lost {SESSION_ATTEMPTS} times: {self._machine.why_lost}',
            'see the log of the server',
        )

    def begin_episode(self, task: str | None, episode_id: str, timeout_s: float) -> Plan[str]:
        """
        End the episode and begin the next one; return its id. A server that is away gets it with
        the next request. Raises WrongSettings.
        """
        _check_episode_id(episode_id)
        begun = self.state.begin_episode(task, episode_id)
        if self._machine.is_open:
            yield Blocking(partial(self._announce_episode, timeout_s))
        return begun

    def close(self) -> Plan[None]:
        """End the session and its link; another call completes one that was cancelled."""
        self.state.end()
        if not self.is_released:
            yield Blocking(self._close)

    # parts of plans

    def _wait(self, turn: Turn, deadline_ns: int, is_over: Callable[[], bool]) -> Plan[None]:
        """Raises Superseded, TooLate and ClientClosed."""
        while True:
            turn.signal.clear()
            self.state.check_turn(turn)
            if is_over():
                return
            left_s = (deadline_ns - self._clock()) / 1e9
            if left_s <= 0:
                raise TooLate(
                    'no reply within the timeout',
                    'raise timeout_s, or look at the load of the server',
                )
            yield Pause(turn.signal, left_s)

    def _awaits_reply(self, turn: Turn) -> bool:
        """Return whether a reply may come to the request of a turn, which was sent."""
        return turn is self._machine.in_flight and self._link.is_available()

    def _ensure_open(self, turn: Turn, deadline_ns: int) -> Plan[None]:
        """Open the session unless it is open; wait for a server that is away."""
        pause_s = FIRST_PAUSE_S
        while not self._machine.is_open:
            turn.signal.clear()
            self.state.check_turn(turn)
            left_s = (deadline_ns - self._clock()) / 1e9
            if left_s <= 0:
                raise (yield Blocking(self._unavailable))
            # what the last moment cannot bring would only hide why the attempt before failed
            is_worth_it = pause_s == FIRST_PAUSE_S or left_s > LAST_ATTEMPT_S
            if is_worth_it and self._link.is_available():
                yield Blocking(partial(self._try_open, left_s))
                if self._machine.is_open:
                    return
            yield Pause(turn.signal, min(pause_s, left_s))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _result(self, turn: Turn, sent_ns: int) -> Prediction:
        """Return the prediction of a turn. Raises SessionLost and PolicyClientError."""
        try:
            if turn.reply is None:
                raise SessionLost(WENT_AWAY)
            raw, arrived_ns = turn.reply
            chunk = read_chunk(raw)
        except SessionLost as lost:
            self.state.lost(str(lost))
            raise
        return prediction_of(
            chunk,
            self.state.terms.action_names,
            (arrived_ns - sent_ns) / 1e6,
            policy_changed=self.state.on_chunk(chunk.header, chunk.policy),
        )

    def _deadline_ns(self, timeout_s: float) -> int:
        return self._clock() + int(timeout_s * 1e9)

    # what blocks; the thread that a driver runs it in

    def _unavailable(self) -> ServerUnavailable:
        if self._link.is_available():
            # or it has just gone, which is seen a little later
            return ServerUnavailable(self._machine.why_lost, 'check that it runs, and see its log')
        return ServerUnavailable(self._link.absence(), '')

    def _try_open(self, timeout_s: float) -> None:
        """Open a session, or note why not. Raises SessionRejected and ClientClosed."""
        request = self.state.request(self._link.reply_topic)
        try:
            agreement = self._link.open(request, timeout_s)
        except (SessionRefused, ServerUnreachable) as error:
            self.state.failed(request, error)
            if isinstance(error, SessionRefused) and error.code not in TRANSIENT:
                raise SessionRejected(error.code, str(error)) from None
        except Unencodable as error:
            raise WrongObservation(f'the session cannot be requested ({error})', '') from None
        else:
            if self.state.opened(request, agreement):
                self._link.wait_until_matched(min(timeout_s, MATCH_TIMEOUT_S))
            else:
                # CloseSession may have come before the server had decided
                self._close_at_server(request)
                self.state.check_usable()

    def _send(self, turn: Turn, task: str | None) -> int:
        """Encode and send a request; return when. Raises PolicyClientError."""
        try:
            observation = self.state.next_observation(turn, task, self._clock())
            raw = self._link.encode(observation)
        except Unencodable as error:
            raise WrongObservation(str(error), '') from None
        sent_ns = self._clock()
        if self.state.sent(turn):
            try:
                self._link.send(raw)
            except ServerUnreachable:
                self.state.server_changed(WENT_AWAY)
        return sent_ns

    def _announce_episode(self, timeout_s: float) -> None:
        try:
            reply = self._link.reset(self.state.reset_request(), timeout_s)
        except ServerUnreachable as error:
            self.state.lost(str(error))
            return
        if not reply.acknowledged:
            self.state.lost(reply.text)

    def _close(self) -> None:
        with self._ending:
            if self.is_released:
                return
            try:
                # also one whose reply was not awaited
                if self._machine.requested:
                    self._close_at_server(self._machine.requested)
            finally:
                self._release()
                self.is_released = True

    def _close_at_server(self, request: OpenSessionRequest) -> None:
        # a server that is away ends the session by itself
        with contextlib.suppress(ServerUnreachable):
            self._link.close_session(request, CLOSE_TIMEOUT_S)


def _check_episode_id(given: str) -> None:
    """Raise WrongSettings for one that messages and logs cannot carry."""
    if not is_printable(given, ID_LIMIT):
        raise WrongSettings(
            f'episode_id is {given[:80]!r}',
            f'give printable text of at most {ID_LIMIT} bytes, or none: one is made',
        )
