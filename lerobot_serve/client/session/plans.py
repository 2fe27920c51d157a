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
    AWAIT_EACH,
    ClientClosed,
    ServerUnavailable,
    SessionRejected,
    Superseded,
    TooLate,
    TRANSIENT,
    WrongObservation,
    WrongSettings,
)
from lerobot_serve.client.link import CLOSE_TIMEOUT_S, LinkCallbacks, ServerLink
from lerobot_serve.client.results import Prediction
from lerobot_serve.client.session.inputs import Observed
from lerobot_serve.client.session.replies import prediction_of, read_chunk, SessionLost
from lerobot_serve.client.session.state import EPISODE_ENDED, SessionSettings, SessionState
from lerobot_serve.client.session.turns import RequestTurns, Turn
from lerobot_serve.client.steps import Blocking, Pause, Plan, Waker
from lerobot_serve.contract.data_path.header import read_envelope
from lerobot_serve.contract.errors import Malformed, Unencodable
from lerobot_serve.contract.limits import ID_LIMIT
from lerobot_serve.contract.names import is_printable
from lerobot_serve.contract.records import OpenSessionRequest
from lerobot_serve.contract.services.session import ServerUnreachable, SessionRefused

# between attempts to open a session, doubled each time
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 0.5
# a session is not opened again in less than this
LAST_ATTEMPT_S = 0.05
MATCH_TIMEOUT_S = 3.0
# for a server that loses each session that it opens
SESSION_ATTEMPTS = 5
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
        self.state, self.turns = SessionState(settings), RequestTurns()
        # closed: nothing is requested any more; released: another session may have its name
        self.is_closed = self.is_released = False
        self._clock, self._ending = clock, threading.Lock()
        self._link, self._release = make_link(LinkCallbacks(self._on_message, self._on_presence))

    # threads of the link

    def _on_message(self, raw: bytes) -> None:
        try:
            header, client_id, _ = read_envelope(raw)
        except Malformed as error:
            self.turns.drop(error.reason)
            return
        if client_id == self.state.settings.client_id:
            self.turns.on_reply(header, raw, self._clock())
        else:
            self.turns.drop('wrong_client')

    def _on_presence(self, is_available: bool) -> None:
        if not is_available:
            self.state.end_session('the server went away')
        self.turns.on_server_change(is_lost=not is_available)

    # plans

    def open(self, timeout_s: float, signal: Waker) -> Plan[None]:
        """Open the session. Raises SessionRejected and ServerUnavailable."""
        self._check_usable()
        turn = self.turns.enter(signal)
        try:
            yield from self._ensure_open(turn, self._deadline_ns(timeout_s))
        finally:
            self.turns.leave(turn)

    def predict(
        self, observed: Observed, task: str | None, timeout_s: float, signal: Waker
    ) -> Plan[Prediction]:
        """Request a chunk. Raises PolicyClientError."""
        self._check_usable()
        deadline_ns = self._deadline_ns(timeout_s)
        self.state.observe(observed)
        turn = self.turns.enter(signal)
        try:
            yield from self._wait(turn, deadline_ns)
            for _ in range(SESSION_ATTEMPTS):
                yield from self._ensure_open(turn, deadline_ns)
                sent_ns = yield Blocking(partial(self._send, turn, task))
                yield from self._wait(turn, deadline_ns)
                with contextlib.suppress(SessionLost):
                    return self._result(turn, sent_ns)
        finally:
            self.turns.leave(turn)
        raise ServerUnavailable(
            f'the session was lost {SESSION_ATTEMPTS} times: {self.state.why_lost}',
            'see the log of the server',
        )

    def begin_episode(self, task: str | None, episode_id: str, timeout_s: float) -> Plan[str]:
        """
        End the episode and begin the next one; return its id. A server that is away gets it with
        the next request. Raises WrongSettings.
        """
        self._check_usable()
        _check_episode_id(episode_id)
        begun = self.state.begin_episode(task, episode_id)
        self.turns.end_all(EPISODE_ENDED)
        if self.state.is_open:
            yield Blocking(partial(self._announce_episode, timeout_s))
        return begun

    def close(self) -> Plan[None]:
        """End the session and its link; another call completes one that was cancelled."""
        self.is_closed = True
        self.turns.end_all('the session was closed')
        if not self.is_released:
            yield Blocking(self._close)

    # parts of plans

    def _wait(self, turn: Turn, deadline_ns: int) -> Plan[None]:
        """
        Wait until a turn may send or, once it has sent, until it has a reply or the server is
        away. Raises Superseded, TooLate and ClientClosed.
        """
        while True:
            turn.signal.clear()
            self._check_turn(turn)
            if turn.may_send and turn.request is None:
                return
            if turn.request and (turn.reply or turn.is_lost or not self._link.is_available()):
                return
            left_s = (deadline_ns - self._clock()) / 1e9
            if left_s <= 0:
                raise TooLate(
                    'no reply within the timeout',
                    'raise timeout_s, or look at the load of the server',
                )
            yield Pause(turn.signal, left_s)

    def _ensure_open(self, turn: Turn, deadline_ns: int) -> Plan[None]:
        """Open the session unless it is open; wait for a server that is away."""
        pause_s = FIRST_PAUSE_S
        while not self.state.is_open:
            turn.signal.clear()
            self._check_turn(turn)
            left_s = (deadline_ns - self._clock()) / 1e9
            if left_s <= 0:
                raise (yield Blocking(self._unavailable))
            # what the last moment cannot bring would only hide why the attempt before failed
            is_worth_it = pause_s == FIRST_PAUSE_S or left_s > LAST_ATTEMPT_S
            if is_worth_it and self._link.is_available():
                yield Blocking(partial(self._try_open, left_s))
                if self.state.is_open:
                    return
            yield Pause(turn.signal, min(pause_s, left_s))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _check_turn(self, turn: Turn) -> None:
        if turn.superseded:
            self._check_usable()
            raise Superseded(turn.superseded, AWAIT_EACH)

    def _check_usable(self) -> None:
        if self.is_closed:
            raise ClientClosed('the session is closed', 'open another one')

    def _result(self, turn: Turn, sent_ns: int) -> Prediction:
        """Return the prediction of a turn. Raises SessionLost and PolicyClientError."""
        try:
            if turn.reply is None:
                raise SessionLost('the server went away')
            raw, arrived_ns = turn.reply
            chunk = read_chunk(raw)
        except SessionLost as lost:
            self.state.end_session(str(lost))
            raise
        return prediction_of(
            chunk,
            self.state.settings.action_names,
            (arrived_ns - sent_ns) / 1e6,
            policy_changed=self.state.on_chunk(chunk.header, chunk.policy),
        )

    def _deadline_ns(self, timeout_s: float) -> int:
        return self._clock() + int(timeout_s * 1e9)

    # what blocks; the thread that a driver runs it in

    def _unavailable(self) -> ServerUnavailable:
        if self._link.is_available():
            # or it has just gone, which is seen a little later
            return ServerUnavailable(self.state.why_lost, 'check that it runs, and see its log')
        return ServerUnavailable(self._link.absence(), '')

    def _try_open(self, timeout_s: float) -> None:
        """Open a session, or note why not. Raises SessionRejected and ClientClosed."""
        # it may have waited for a thread
        self._check_usable()
        request = self.state.next_session_request(self._link.reply_topic)
        try:
            agreement = self._link.open(request, timeout_s)
        except SessionRefused as refused:
            # there is nothing to close
            self.state.last_request = None
            if refused.code not in TRANSIENT:
                raise SessionRejected(refused.code, str(refused)) from None
            self.state.end_session(str(refused))
        except ServerUnreachable as error:
            self.state.end_session(str(error))
        except Unencodable as error:
            raise WrongObservation(f'the session cannot be requested ({error})', '') from None
        else:
            if self.is_closed:
                # CloseSession may have come before the server had decided
                self._close_at_server(request)
                self._check_usable()
            self.state.begin_session(agreement)
            self._link.wait_until_matched(min(timeout_s, MATCH_TIMEOUT_S))

    def _send(self, turn: Turn, task: str | None) -> int:
        """Encode and send a request; return when. Raises WrongObservation and Superseded."""
        # its session may have taken seconds to open: the episode may have ended meanwhile
        self._check_turn(turn)
        try:
            observation = self.state.next_observation(task, self._clock())
            raw = self._link.encode(observation)
        except Unencodable as error:
            raise WrongObservation(str(error), '') from None
        sent_ns = self._clock()
        if self.turns.expect(turn, observation.header):
            try:
                self._link.send(raw)
            except ServerUnreachable:
                turn.is_lost = True
            self.state.on_sent()
        return sent_ns

    def _announce_episode(self, timeout_s: float) -> None:
        try:
            reply = self._link.reset(self.state.reset_request(), timeout_s)
        except ServerUnreachable as error:
            self.state.end_session(str(error))
            return
        if not reply.acknowledged:
            self.state.end_session(reply.text)

    def _close(self) -> None:
        with self._ending:
            if self.is_released:
                return
            try:
                # also one whose reply was not awaited
                if self.state.last_request:
                    self._close_at_server(self.state.last_request)
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
