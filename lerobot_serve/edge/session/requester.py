# SPDX-License-Identifier: Apache-2.0
"""
The request thread: opens sessions and requests chunks, one at a time.

It uses a `Transport`, so that tests need no ROS. The loop: select a server; wait until the queue
is low; send a request; wait for the reply; fail over when the server is lost. A server is lost
when its writer is not alive, when it does not answer a probe while another server is available,
after several timeouts, or when it says so. Each result is an event for the connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
import contextlib
import queue
import threading

from lerobot_serve.edge.queue.action_queue import ActionQueue
from lerobot_serve.edge.session.agreement import check_agreement
from lerobot_serve.edge.session.connection import (
    Connection,
    ConnectionEvent,
    ConnectionState,
    REFUSAL_EVENTS,
)
from lerobot_serve.edge.session.pipeline import ReplyResult, RequestPipeline
from lerobot_serve.edge.session.reply_watchdog import ReplyWatchdog
from lerobot_serve.edge.session.server_liveliness import ServerLiveliness
from lerobot_serve.edge.session.servers import ServerSelection
from lerobot_serve.edge.session.tracker import PendingRequest
from lerobot_serve.edge.session.transport import EpisodeRequest, RequestSettings, Transport
from lerobot_serve.wire.errors import Malformed
from lerobot_serve.wire.header import read_envelope
from lerobot_serve.wire.session import ServerUnreachable, SessionRefused

INPUT_RETRY_S = 0.02
# period of the timer checks
POLL_PERIOD_S = 0.1
# rounding may leave a wait below 0
MIN_WAIT_S = 0.001
# consecutive replies without actions before a failover
MAX_CONSECUTIVE_FAILURES = 5


class Requester:
    """
    `run` is the body of the request thread. Any thread may call `on_chunk`, `on_liveliness`,
    `begin`, `rest` and `close`.
    """

    def __init__(
        self,
        link: Transport,
        exchange: RequestPipeline,
        actions: ActionQueue,
        connection: Connection,
        servers: ServerSelection,
        presence: ServerLiveliness,
        *,
        pace: RequestSettings,
        clock: Callable[[], int],
    ) -> None:
        self._link, self.exchange, self._actions = link, exchange, actions
        self.connection, self.servers = connection, servers
        self._presence, self._watchdog, self._clock = presence, ReplyWatchdog(link, servers), clock
        # a change applies from the next episode on
        self.pace = self.next_settings = pace
        self._open = False
        self._failures = self._timeouts = 0
        # of the servers tried in this round
        self._all_incompatible = True
        self._wanted_since_ns: int | None = None
        self._refused_since_ns: int | None = None
        self._arrived: queue.SimpleQueue[tuple[bytes, int] | None] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._resting = threading.Event()
        # at most one: the later of two counts
        self._next_episode: deque[EpisodeRequest] = deque(maxlen=1)

    # called by other threads

    @property
    def left_s(self) -> float:
        """How long the queue lasts without stale actions [s]."""
        return self.exchange.left_s(self.pace)

    def on_chunk(self, raw: bytes) -> None:
        """Deposit a reply."""
        self._arrived.put((raw, self._clock()))

    def on_no_session(self, raw: bytes) -> None:
        """Deposit a server's notice of an unknown session."""
        with contextlib.suppress(Malformed):
            if not self.exchange.is_for_this_client(read_envelope(raw).client_id):
                return
        # a malformed one is counted like any reply
        self.on_chunk(raw)

    def on_liveliness(self, server: str, *, alive: int, change: int, is_silent: bool) -> None:
        """Record how many writers of a server are alive; a change wakes the thread."""
        if self._presence.note(server, alive=alive, change=change, is_silent=is_silent):
            self._arrived.put(None)

    def begin(self, episode: EpisodeRequest) -> None:
        """
        End the current episode, clear the queue and schedule this episode. Leaves DEAD.
        """
        self._next_episode.append(episode)
        self._actions.clear()
        self.connection.on(ConnectionEvent.REVIVED, 'episode started by an operator')
        self._arrived.put(None)

    def rest(self, *, resting: bool) -> None:
        """Send no requests while resting; the queue stays."""
        (self._resting.set if resting else self._resting.clear)()
        self._arrived.put(None)

    def close(self) -> None:
        """Make `run` return."""
        self._stop.set()
        self._arrived.put(None)

    # the thread

    def run(self) -> None:
        while not self._stop.is_set():
            if self._next_episode:
                self._begin_episode(self._next_episode.pop())
            elif self._is_idle():
                self._rest()
            else:
                (self._step if self._open else self._connect)()
            self._check_liveliness()
            self._check_timers()
        self.exchange.leave()
        if self._open:
            self._link.close_session()

    def _is_idle(self) -> bool:
        if self.connection.state == ConnectionState.DEAD:
            return True
        # an idle robot still reopens a lost session: otherwise a pause would lead to DEAD
        lost = not self._open and self.connection.state == ConnectionState.RECONNECTING
        return self._resting.is_set() and not lost

    def _rest(self) -> None:
        self._wanted_since_ns = None
        self._take(POLL_PERIOD_S)

    def _check_timers(self) -> None:
        self.connection.check_timers(
            wanted_since_ns=self._wanted_since_ns,
            refused_since_ns=self._refused_since_ns,
            degraded_after_s=self.pace.degraded_after_s,
            max_offline_s=self.pace.max_offline_s,
        )

    def _begin_episode(self, episode: EpisodeRequest) -> None:
        self.pace = self.next_settings
        self._wanted_since_ns = self._refused_since_ns = None
        home = self.servers.preferred
        if self._open and self._link.is_there(home) and self.servers.return_to_preferred():
            self._link.close_session()
            self._open = False
        self.exchange.begin_episode(episode, tell=self._open)

    def _connect(self) -> None:
        server = self.servers.present
        if self.servers.has_others and not self._link.is_there(server):
            # another one may be available; to wait here would drain the queue
            self._fail(ConnectionEvent.LOST, 'server not available')
            return
        epoch = self.exchange.next_session_epoch()
        self._presence.begin(server)
        try:
            agreement = self._link.open_session(server, epoch)
            check_agreement(agreement)
        except ServerUnreachable as error:
            self._fail(ConnectionEvent.LOST, str(error))
        except SessionRefused as refused:
            # a refusal with an unknown code may be temporary
            self._fail(REFUSAL_EVENTS.get(refused.code, ConnectionEvent.LOST), str(refused))
        else:
            # replies of the previous session still count
            while self._take(0.0) is not None:
                pass
            self._open = True
            self._refused_since_ns = None
            self.exchange.progress.server = server
            self.exchange.begin_session(server, agreement)
            self.connection.on(ConnectionEvent.OPENED, f'session opened with {server}')

    def _fail(self, event: ConnectionEvent, reason: str) -> None:
        """Switch to the next server; after the last of them, wait."""
        self._open, self._failures, self._timeouts = False, 0, 0
        self.exchange.progress.server = ''
        wait_s = self.servers.failed(reason)
        self._all_incompatible &= event is ConnectionEvent.VIOLATION
        # permanent only if all servers are incompatible
        final = self._all_incompatible and not self.servers.is_failing_over
        if final and self._refused_since_ns is None:
            self._refused_since_ns = self._clock()
        if event is ConnectionEvent.LOST:
            self._refused_since_ns = None
        self.connection.on(
            ConnectionEvent.VIOLATION if final else ConnectionEvent.LOST, self.servers.text
        )
        if not self.servers.is_failing_over:
            self._all_incompatible = True
        if wait_s:
            self._take(wait_s)

    def _step(self) -> None:
        """Wait, or send a request and wait for its reply; bounded by the request deadline."""
        left_s = self.exchange.left_s(self.pace)
        if left_s > self.pace.request_threshold_s:
            self._wanted_since_ns = None
            surplus_s = left_s - self.pace.request_threshold_s
            self._take(min(max(surplus_s, MIN_WAIT_S), POLL_PERIOD_S))
            return
        if self._wanted_since_ns is None:
            self._wanted_since_ns = self._clock()
        pending = self.exchange.ask(self.pace)
        if pending is None:
            self._take(INPUT_RETRY_S)
            return
        if self._wait_for_reply(pending) is ReplyResult.FAILED:
            self._on_reply_without_actions()

    def _on_reply_without_actions(self) -> None:
        self._failures, self._timeouts = self._failures + 1, 0
        if self._failures < MAX_CONSECUTIVE_FAILURES:
            self.connection.on(ConnectionEvent.LATE, self.exchange.progress.failed)
        else:
            self._fail(ConnectionEvent.LOST, self.exchange.progress.failed)
        # limits the request rate to a server that refuses at once
        self._stop.wait(self.pace.step_s)

    def _wait_for_reply(self, pending: PendingRequest) -> ReplyResult | None:
        """Process replies until the pending one, its deadline, or the loss of the server."""
        deadline_ns = pending.sent_ns + int(self.pace.request_timeout_s * 1e9)
        self._watchdog.begin(pending, self.pace.request_threshold_s)
        while self._is_waiting():
            now_ns = self._clock()
            if now_ns >= deadline_ns:
                self._on_timeout()
                return None
            if reason := self._watchdog.look(pending, now_ns):
                self._fail(ConnectionEvent.LOST, reason)
                return None
            wait_s = (self._watchdog.next_ns(now_ns, deadline_ns) - now_ns) / 1e9
            outcome = self._take(min(wait_s, POLL_PERIOD_S))
            if outcome not in (None, ReplyResult.DROPPED):
                return outcome
            self._check_liveliness()
            self._check_timers()
        return None

    def _is_waiting(self) -> bool:
        has_pending = self._open and self.exchange.pending
        return bool(has_pending) and not self._stop.is_set() and not self._next_episode

    def _on_timeout(self) -> None:
        """Count a timeout; several in a row lose the server."""
        self.exchange.time_out()
        self._timeouts += 1
        text = f'no reply within {self.pace.request_timeout_s:g} s'
        if self._timeouts < self.pace.max_consecutive_timeouts:
            self.connection.on(ConnectionEvent.LATE, text)
        else:
            times = f' ({self._timeouts} consecutive requests)' if self._timeouts > 1 else ''
            self._fail(ConnectionEvent.LOST, text + times)

    def _check_liveliness(self) -> None:
        """Leave a lost server."""
        reason = self._presence.loss() if self._open else ''
        is_there = not self._presence.is_silent and self._link.is_there(self.servers.present)
        if reason and self._resting.is_set() and is_there:
            # it closed an idle session; the next request opens another one
            self._open = False
        elif reason:
            self._fail(ConnectionEvent.LOST, reason)

    def _take(self, wait_s: float) -> ReplyResult | None:
        """Wait for a message and return the result of processing it."""
        try:
            arrived = self._arrived.get(timeout=wait_s)
        except queue.Empty:
            return None
        if not arrived:
            return None
        outcome = self.exchange.on_answer(*arrived, self.pace)
        if outcome is ReplyResult.MERGED:
            self._wanted_since_ns, self._failures, self._timeouts = None, 0, 0
            if self._open:
                self.servers.answered()
                self._all_incompatible = True
            self.connection.on(ConnectionEvent.MERGED, '')
        elif outcome is ReplyResult.SESSION_OVER and self._open:
            self._fail(ConnectionEvent.LOST, self.exchange.progress.failed)
        return outcome
