# SPDX-License-Identifier: Apache-2.0
"""
Send copies of requests to the shadow and publish comparisons. The thread `shadow`.

The live path deposits references and never waits: when the thread is behind, new deposits are
dropped and counted. Everything that may be slow or hang (sessions with the shadow, publishing,
comparing) happens here.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
import queue
import threading

from lerobot_serve.router.data_path.in_flight import InFlightRequest
from lerobot_serve.router.data_path.rules import ShadowRules
from lerobot_serve.router.sessions.client_sessions import ClientSession
from lerobot_serve.router.shadow.comparator import (
    ShadowComparator,
    ShadowComparison,
    ShadowStatistics,
)
from lerobot_serve.router.shadow.sample_joiner import RequestKey
from lerobot_serve.router.shadow.sampling import is_drawn_twice, is_shadowed
from lerobot_serve.router.shadow.sessions import (
    second_draw_client_id,
    SECOND_DRAW_SUFFIX,
    SESSIONS_LIMIT,
    ShadowClient,
    ShadowSessions,
)
from lerobot_serve.wire import chunk as wire_chunk
from lerobot_serve.wire import observation as wire_observation
from lerobot_serve.wire.chunk import ReplySummary
from lerobot_serve.wire.errors import Malformed, Unencodable
from lerobot_serve.wire.execution_report import ExecutionReport
from lerobot_serve.wire.header import Envelope, Header
from lerobot_serve.wire.schema import ID_LIMIT, Status
from lerobot_serve.wire.session import SessionRequest

# requests hold their images
REQUESTS_LIMIT = 32
DEPOSITS_LIMIT = 1024
POLL_S = 0.5


class ShadowFeed:
    """
    The data path calls `on_request` and `on_reply_sent`, the thread of shadow replies
    `on_shadow_chunk` and `on_again`; `run` is the body of the thread. `again` returns the client
    for a second draw of a session, None when none is available.
    """

    def __init__(
        self,
        book: ShadowComparator,
        shadow: ShadowClient,
        again: Callable[[ClientSession], ShadowClient | None],
        publish: Callable[[ShadowComparison, tuple[str, ...]], None],
        rules: ShadowRules,
        *,
        clock: Callable[[], int],
        warn: Callable[[str], None],
    ) -> None:
        self._book, self._shadow, self._second_draw_client = book, shadow, again
        self._publish, self.rules = publish, rules
        self._clock, self._warn = clock, warn
        self._deposits: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._waiting_requests = 0
        self._counting = threading.Lock()
        self._dropped: Counter[str] = Counter()
        self._sessions = ShadowSessions(clock, warn)
        self._action_names: OrderedDict[str, tuple[str, ...]] = OrderedDict()
        # policies that draw random numbers
        self._stochastic: set[str] = set()

    # the data path's threads

    def on_request(
        self, robot: ClientSession, raw: bytes, header: Header, executed: ExecutionReport | None
    ) -> None:
        """Deposit a request; a sampled one is copied to the shadow."""
        start = Envelope(header, robot.ask.client_id, robot.episode_id)
        if executed:
            self._deposit(partial(self._book.on_executed, start, executed))
        if not is_shadowed(RequestKey.of(start), self.rules.percent):
            return
        with self._counting:
            has_room = self._waiting_requests < REQUESTS_LIMIT
            self._waiting_requests += has_room
        if not has_room:
            self._deposit(partial(self._record_unsent, start, 'shadow_overflow'))
        elif not self._deposit(partial(self._send_request, robot, raw, start)):
            self._forget_request()

    def on_reply_sent(
        self, flight: InFlightRequest, server: str, raw: bytes, answer: ReplySummary
    ) -> None:
        """Deposit a live reply."""
        if is_shadowed(RequestKey.of(answer.start), self.rules.percent):
            self._deposit(partial(self._note_live, raw, answer))

    # the control thread

    def on_session_closed(self, ask: SessionRequest) -> None:
        """Close the shadow sessions of a closed session."""
        self._deposits.put(partial(self._sessions.close, ask))

    def finish(self, limit_s: float) -> bool:
        """Wait until all deposits are handled; False after the time limit."""
        done = threading.Event()
        self._deposits.put(done.set)
        return done.wait(limit_s)

    # the threads that take answers

    def on_shadow_chunk(self, raw: bytes) -> None:
        self._deposit(partial(self._note_shadow, raw, self._clock()))

    def on_again(self, raw: bytes) -> None:
        self._deposit(partial(self._record_second_draw, raw, self._clock()))

    def _deposit(self, act: Callable[[], None]) -> bool:
        """Return whether there was room."""
        has_room = self._deposits.qsize() < DEPOSITS_LIMIT
        if has_room:
            self._deposits.put(act)
        else:
            self._drop('shadow_overflow')
        return has_room

    def _forget_request(self) -> None:
        """Count one waiting request less."""
        with self._counting:
            self._waiting_requests -= 1

    def _drop(self, reason: str) -> None:
        with self._counting:
            self._dropped[reason] += 1

    def drops(self) -> dict[str, int]:
        """Return the counts of dropped samples by reason; any thread."""
        # a copy: the thread may count a new reason meanwhile
        compared = Counter(dict(self._book.drops))
        with self._counting:
            return dict(self._dropped + compared)

    def summary(self) -> ShadowStatistics:
        """Return the statistics; any thread."""
        return self._book.summary()

    # the thread

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                act = self._deposits.get(timeout=POLL_S)
            except queue.Empty:
                act = None
            if act:
                act()
            for comparison in self._book.poll(self._clock()):
                names = self._action_names.get(comparison.client_id, ())
                self._publish(comparison, names)
        self._book.close()

    def wake(self) -> None:
        """End the present wait; any thread."""
        self._deposits.put(None)

    def _send_request(self, robot: ClientSession, raw: bytes, start: Envelope) -> None:
        self._forget_request()
        if not self._open_shadow(robot.ask):
            self._record_unsent(start, 'shadow_no_session')
            return
        self._book.on_live_request(start, self._clock())
        self._shadow.send(raw)
        if self._wants_second_draw(robot, RequestKey.of(start)):
            self._send_second_draw(robot, raw, start)

    def _has_session(self, client: ShadowClient, ask: SessionRequest) -> bool:
        return self._sessions.knows(client, ask) or self._sessions.open(client, ask)

    def _open_shadow(self, ask: SessionRequest) -> bool:
        """Ensure the session with the shadow; a new one registers action names and limits."""
        if self._sessions.knows(self._shadow, ask):
            return True
        if not self._sessions.open(self._shadow, ask):
            return False
        self._action_names[ask.client_id] = ask.action_names
        if len(self._action_names) > SESSIONS_LIMIT:
            self._action_names.popitem(last=False)
        problem = self._book.on_session(ask)
        if problem:
            self._warn(f'limits of {ask.client_id!r}: {problem}')
        return True

    def _wants_second_draw(self, robot: ClientSession, key: RequestKey) -> bool:
        return bool(self._stochastic) and is_drawn_twice(key, self.rules.spread_percent)

    def _send_second_draw(self, robot: ClientSession, raw: bytes, start: Envelope) -> None:
        """Send the request to the live policy under another client_id for a second draw."""
        client, name = self._second_draw_client(robot), second_draw_client_id(start.client_id)
        if client is None or len(name.encode()) > ID_LIMIT:
            self._drop('second_draw_no_room')
            return
        if not self._has_session(client, replace(robot.ask, client_id=name)):
            self._drop('second_draw_no_session')
            return
        try:
            observation = replace(wire_observation.decode(raw), client_id=name)
            client.send(wire_observation.encode(observation))
        except (Malformed, Unencodable):
            self._drop('second_draw_unencodable')

    def _record_unsent(self, start: Envelope, reason: str) -> None:
        self._book.on_unasked(start, reason, self._clock())

    def _note_live(self, raw: bytes, answer: ReplySummary) -> None:
        (self._stochastic.add if answer.seed else self._stochastic.discard)(answer.policy)
        try:
            self._book.on_live_chunk(wire_chunk.decode(raw), self._clock())
        except Malformed as error:
            self._drop(error.reason)

    def _note_shadow(self, raw: bytes, arrived_ns: int) -> None:
        try:
            chunk = wire_chunk.decode(raw)
        except Malformed as error:
            self._drop(error.reason)
            return
        if chunk.status == Status.NO_SESSION:
            self._sessions.forget(chunk.client_id)
        self._book.on_shadow_chunk(chunk, arrived_ns)

    def _record_second_draw(self, raw: bytes, arrived_ns: int) -> None:
        try:
            chunk = wire_chunk.decode(raw)
        except Malformed as error:
            self._drop(error.reason)
            return
        if chunk.status == Status.NO_SESSION:
            self._sessions.forget(chunk.client_id)
        client_id = chunk.client_id.removesuffix(SECOND_DRAW_SUFFIX)
        key = RequestKey(client_id, chunk.header.session_epoch, chunk.header.seq)
        self._book.on_second_draw(key, chunk, arrived_ns)
