# SPDX-License-Identifier: Apache-2.0
"""
The request thread: opens sessions and requests chunks, one at a time.

It uses a `Transport` and an `Inbox`, so that tests need neither ROS nor time. The loop: select a
server; wait until the queue is low; send a request; wait for the reply; fail over when the server
is lost. A server is lost when its writer is not alive, when it does not respond to a probe while
another server is available, after several timeouts, or when it ends the session. Each result is an
event for the connection.
"""

from __future__ import annotations

from collections import deque
import threading

from lerobot_serve.contract.services.session import ServerUnreachable, SessionRefused
from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.edge.session.connection import (
    Connection,
    ConnectionEvent,
    ConnectionState,
)
from lerobot_serve.edge.session.inbox import Inbox
from lerobot_serve.edge.session.pipeline import EpisodeRequest, RequestPipeline
from lerobot_serve.edge.session.request import (
    ABANDONED,
    check_agreement,
    ENDS_SESSION,
    OK,
    PendingRequest,
    RequestEnd,
)
from lerobot_serve.edge.session.servers import ReplyWatchdog, ServerLiveliness
from lerobot_serve.edge.session.transport.transport import Transport
from lerobot_serve.session.failover import PERMANENT_REFUSALS, ServerSelection

INPUT_RETRY_S = 0.02
# period of the timer checks
POLL_PERIOD_S = 0.1
# rounding may leave a wait below 0
MIN_WAIT_S = 0.001
# requests with which a robot that halts reports it, until one is replied to
HALT_REPORTS = 5
# consecutive replies without actions before a failover
MAX_CONSECUTIVE_FAILURES = 5


class Requester:
    """
    `run` is the body of the request thread. Any thread may call `begin_episode`, `replan`,
    `set_idle`, `set_halted` and `close`.
    """

    def __init__(
        self,
        transport: Transport,
        pipeline: RequestPipeline,
        connection: Connection,
        servers: ServerSelection,
        liveliness: ServerLiveliness,
        inbox: Inbox,
        *,
        settings: EdgeParameters,
    ) -> None:
        self._transport, self.pipeline, self._machine = transport, pipeline, pipeline.machine
        self.connection, self.servers = connection, servers
        self._liveliness, self._inbox = liveliness, inbox
        self._watchdog = ReplyWatchdog(transport, servers)
        # a change applies from the next episode on
        self.settings = self.next_settings = settings
        # in a row, in this session
        self._failures = self._timeouts = 0
        self._wanted_since_ns: int | None = None
        self._refused_since_ns: int | None = None
        self._idle = threading.Event()
        self._is_halted = False
        self._halt_reports_left = 0
        # at most one: the later one replaces the earlier one
        self._next_episode: deque[EpisodeRequest] = deque(maxlen=1)
        # begun, and not yet known to the pipeline
        self._begun: EpisodeRequest | None = None

    # any thread

    @property
    def playable_s(self) -> float:
        """The time that the queue lasts without stale actions [s]."""
        return self.pipeline.merger.playable_s(self._inbox.clock(), self.settings)

    @property
    def episode_id(self) -> str:
        """The episode that was begun last; empty while it has no id yet."""
        begun = self._begun
        return begun.episode_id if begun else self.pipeline.status.episode_id

    def begin_episode(self, episode: EpisodeRequest) -> None:
        """
        End the current episode, clear the queue and schedule this episode. Leaves DEAD.
        """
        self._begun = episode
        self._next_episode.append(episode)
        self.pipeline.merger.queue.clear()
        self.connection.handle(ConnectionEvent.RESET, 'episode started by an operator')
        self._inbox.wake()

    def replan(self) -> None:
        """Clear the queue in mid-episode: only chunks requested from now on are executed."""
        self.pipeline.merger.queue.clear(ends_episode=False)
        self._inbox.wake()

    def set_idle(self, *, idle: bool) -> None:
        """Send no requests while idle; the queue stays."""
        (self._idle.set if idle else self._idle.clear)()
        self._inbox.wake()

    def set_halted(self, *, halted: bool) -> None:
        """Report with one more request that the robot is at rest until a person acts."""
        if halted is not self._is_halted:
            self._is_halted = halted
            self._halt_reports_left = HALT_REPORTS
            self._inbox.wake()

    def close(self) -> None:
        """Make `run` return."""
        self._inbox.stop()

    # the request thread

    def run(self) -> None:
        """Request chunks until `close`, then close the session."""
        while not self._inbox.is_stopped:
            if self._next_episode:
                self._start_episode(self._next_episode.pop())
            elif self._is_idle():
                self._rest()
            elif self._machine.is_open:
                self._request_chunk()
            else:
                self._connect()
            self._check()
        is_open = self._machine.is_open
        self.pipeline.close()
        if is_open:
            self._transport.close_session()

    def _is_idle(self) -> bool:
        if self.connection.state == ConnectionState.DEAD:
            return True
        # an idle robot still reopens a lost session: otherwise a pause would lead to DEAD
        lost = not self._machine.is_open and self.connection.state == ConnectionState.RECONNECTING
        return self._idle.is_set() and not lost

    def _rest(self) -> None:
        """Wait, or report a halt with a request; the chunk of its reply is not played."""
        if not (self._is_halted and self._machine.is_open and self._halt_reports_left):
            self._wanted_since_ns = None
            self._receive(POLL_PERIOD_S)
            return
        self._halt_reports_left -= 1
        pending = self.pipeline.send_request(self.settings)
        if pending is None:
            self._receive(POLL_PERIOD_S)
        elif self._wait_for_reply(pending):
            self._halt_reports_left = 0

    def _start_episode(self, episode: EpisodeRequest) -> None:
        self.settings = self.next_settings
        self._wanted_since_ns = None
        is_open = self._machine.is_open
        if is_open and self.servers.return_to_better(self._transport.is_available):
            self._transport.close_session()
            self._machine.lost('a better server is available')
        self.pipeline.begin_episode(episode)
        if self._begun is episode:
            self._begun = None

    def _connect(self) -> None:
        server = self.servers.current
        if self.servers.has_alternatives and not self._transport.is_available(server):
            # another server may be available; waiting here would drain the queue
            self._leave_server('server not available')
            return
        epoch = self._machine.begin_request()
        self._liveliness.begin_session(server)
        try:
            agreement = self._transport.open_session(server, epoch)
            check_agreement(agreement)
        except (ServerUnreachable, SessionRefused) as error:
            self._machine.failed(epoch, error)
            is_refused = isinstance(error, SessionRefused) and error.code in PERMANENT_REFUSALS
            self._leave_server(str(error), is_permanent=is_refused)
        else:
            self._drain()
            self._failures, self._timeouts, self._refused_since_ns = 0, 0, None
            self.pipeline.begin_session(server, epoch, agreement)
            self.connection.handle(ConnectionEvent.SESSION_OPENED, f'session opened with {server}')

    def _drain(self) -> None:
        """Process the replies that are here: they still count."""
        while arrived := self._inbox.take(0.0):
            self._process(*arrived)

    def _leave_server(self, reason: str, *, is_permanent: bool = False) -> None:
        """Switch to the next server; after the last of them, wait."""
        self.pipeline.end_session(reason)
        wait_s = self.servers.mark_failed(reason, is_permanent=is_permanent)
        if not is_permanent:
            self._refused_since_ns = None
        event = ConnectionEvent.SESSION_LOST
        # permanent only if all servers refuse
        if self.servers.is_refused_by_all:
            event = ConnectionEvent.INCOMPATIBLE
            if self._refused_since_ns is None:
                self._refused_since_ns = self._inbox.clock()
        self.connection.handle(event, self.servers.failure_text)
        if wait_s:
            self._receive(wait_s)

    def _request_chunk(self) -> None:
        """Wait, or send a request and wait for its reply; bounded by the request deadline."""
        playable_s, settings = self.playable_s, self.settings
        if playable_s > settings.request_threshold_s:
            self._wanted_since_ns = None
            surplus_s = playable_s - settings.request_threshold_s
            self._receive(min(max(surplus_s, MIN_WAIT_S), POLL_PERIOD_S))
            return
        if self._wanted_since_ns is None:
            self._wanted_since_ns = self._inbox.clock()
        hold_s = self._machine.held_s(self._inbox.clock())
        if hold_s > 0:
            self._receive(min(max(hold_s, MIN_WAIT_S), POLL_PERIOD_S))
            return
        if (pending := self.pipeline.send_request(settings)) is None:
            self._receive(INPUT_RETRY_S)
            return
        end = self._wait_for_reply(pending)
        if end and end.is_without_actions:
            self._on_reply_without_actions(end, self.pipeline.status.last_failure)

    def _on_reply_without_actions(self, end: RequestEnd, failure: str) -> None:
        self._timeouts = 0
        if end.retry_after_s > 0:
            # it is healthy: another one would give a robot more than its quota
            self._machine.hold(self._inbox.clock(), end.retry_after_s)
            self.connection.handle(ConnectionEvent.REQUEST_FAILED, failure)
            return
        self._failures += 1
        if self._failures < MAX_CONSECUTIVE_FAILURES:
            self.connection.handle(ConnectionEvent.REQUEST_FAILED, failure)
        else:
            self._leave_server(failure)
        # limits the request rate to a server that refuses at once
        self._inbox.sleep(self.pipeline.merger.step_s)

    def _wait_for_reply(self, pending: PendingRequest) -> RequestEnd | None:
        """Process replies until the pending one, its deadline, or the loss of the server."""
        deadline_ns = pending.sent_ns + int(self.settings.request_timeout_s * 1e9)
        self._watchdog.watch(pending, self.settings.request_threshold_s)
        while self._machine.awaits_reply and not (self._inbox.is_stopped or self._next_episode):
            now_ns = self._inbox.clock()
            if now_ns >= deadline_ns:
                self.pipeline.mark_overdue()
                self._count_timeout()
                return None
            if reason := self._watchdog.poll(pending, now_ns):
                self._leave_server(reason)
                return None
            wait_s = (self._watchdog.next_poll_ns(now_ns, deadline_ns) - now_ns) / 1e9
            end = self._receive(min(wait_s, POLL_PERIOD_S))
            if end and end.status != ABANDONED:
                return end
            self._check()
        # a reply may have arrived at the same moment
        self._drain()
        if self._next_episode and self._machine.awaits_reply:
            self._on_given_up(pending)
        return None

    def _on_given_up(self, pending: PendingRequest) -> None:
        """
        Count the time without a reply to a request that a new episode ends: episodes that are
        shorter than request_timeout_s must not hide a silent server.
        """
        self._machine.unanswered_s += (self._inbox.clock() - pending.sent_ns) / 1e9
        if self._machine.unanswered_s >= self.settings.request_timeout_s:
            self._machine.unanswered_s = 0.0
            self._count_timeout()

    def _count_timeout(self) -> None:
        """Several in a row lose the server."""
        self._timeouts += 1
        no_reply = f'no reply within {self.settings.request_timeout_s:g} s'
        text = '; '.join(filter(None, (no_reply, self.pipeline.unreadable)))
        if self._timeouts < self.settings.max_consecutive_timeouts:
            self.connection.handle(ConnectionEvent.REQUEST_FAILED, text)
        else:
            times = f' ({self._timeouts} consecutive requests)' if self._timeouts > 1 else ''
            self._leave_server(text.replace(no_reply, no_reply + times))

    def _check(self) -> None:
        """Leave a lost server, and process what is due by time."""
        reason = self._liveliness.loss_reason() if self._machine.is_open else ''
        is_available = not self._liveliness.has_lease_expired and self._transport.is_available(
            self.servers.current
        )
        if reason and self._idle.is_set() and is_available:
            # it closed an idle session; the next request opens another one
            self._machine.lost(reason)
        elif reason:
            self._leave_server(reason)
        self.connection.check_timers(
            self.settings,
            wanted_since_ns=self._wanted_since_ns,
            refused_since_ns=self._refused_since_ns,
        )

    def _receive(self, wait_s: float) -> RequestEnd | None:
        """Wait for a message, and process it; return the request that it ends."""
        arrived = self._inbox.take(wait_s)
        return self._process(*arrived) if arrived else None

    def _process(self, raw: bytes, arrived_ns: int) -> RequestEnd | None:
        end = self.pipeline.on_reply(raw, arrived_ns, self.settings)
        if end and end.status == OK:
            self._wanted_since_ns, self._failures, self._timeouts = None, 0, 0
            if self._machine.is_open:
                self.servers.mark_succeeded()
            self.connection.handle(ConnectionEvent.CHUNK_MERGED, '')
        elif end and end.status in ENDS_SESSION and self._machine.is_open:
            self._leave_server(self.pipeline.status.last_failure)
        return end
