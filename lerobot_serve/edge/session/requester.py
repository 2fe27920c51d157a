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
from lerobot_serve.edge.session.agreement import check_agreement
from lerobot_serve.edge.session.connection import (
    Connection,
    ConnectionEvent,
    ConnectionState,
    REFUSAL_EVENTS,
)
from lerobot_serve.edge.session.inbox import Inbox
from lerobot_serve.edge.session.pipeline import (
    EpisodeRequest,
    ProcessedReply,
    ReplyResult,
    RequestPipeline,
)
from lerobot_serve.edge.session.servers import ReplyWatchdog, ServerLiveliness, ServerSelection
from lerobot_serve.edge.session.tracker import PendingRequest
from lerobot_serve.edge.session.transport.transport import Transport

INPUT_RETRY_S = 0.02
# period of the timer checks
POLL_PERIOD_S = 0.1
# rounding may leave a wait below 0
MIN_WAIT_S = 0.001
# requests with which a robot that halts reports it, until one is replied to
HALT_REPORTS = 5
# longest time for which a used up quota holds requests back; then one is tried
MAX_HOLD_S = 10.0
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
        self._transport, self.pipeline = transport, pipeline
        self.connection, self.servers = connection, servers
        self._liveliness, self._inbox = liveliness, inbox
        self._watchdog = ReplyWatchdog(transport, servers)
        # a change applies from the next episode on
        self.settings = self.next_settings = settings
        self._is_open = False
        self._failures = self._timeouts = 0
        # for requests that a new episode ended before their reply and their timeout
        self._unanswered_s = 0.0
        # a used up quota holds requests back until then
        self._hold_until_ns = 0
        # results of the servers tried in this round
        self._all_incompatible = True
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
        return self.pipeline.playable_s(self.settings)

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
        self.pipeline.clear_queue()
        self.connection.handle(ConnectionEvent.RESET, 'episode started by an operator')
        self._inbox.wake()

    def replan(self) -> None:
        """Clear the queue in mid-episode: only chunks requested from now on are executed."""
        self.pipeline.clear_queue(ends_episode=False)
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
                self._report_halt() if self._has_halt_to_report() else self._wait_idle()
            elif self._is_open:
                self._request_chunk()
            else:
                self._connect()
            self._check_liveliness()
            self._check_timers()
        self.pipeline.close()
        if self._is_open:
            self._transport.close_session()

    def _is_idle(self) -> bool:
        if self.connection.state == ConnectionState.DEAD:
            return True
        # an idle robot still reopens a lost session: otherwise a pause would lead to DEAD
        lost = not self._is_open and self.connection.state == ConnectionState.RECONNECTING
        return self._idle.is_set() and not lost

    def _has_halt_to_report(self) -> bool:
        return self._is_halted and self._is_open and self._halt_reports_left > 0

    def _report_halt(self) -> None:
        """Send a request for its report; the chunk of its reply is not played."""
        self._halt_reports_left -= 1
        pending = self.pipeline.send_request(self.settings)
        if pending is None:
            self._receive(POLL_PERIOD_S)
        elif self._wait_for_reply(pending):
            self._halt_reports_left = 0

    def _wait_idle(self) -> None:
        self._wanted_since_ns = None
        self._receive(POLL_PERIOD_S)

    def _check_timers(self) -> None:
        self.connection.check_timers(
            wanted_since_ns=self._wanted_since_ns,
            refused_since_ns=self._refused_since_ns,
            degraded_after_s=self.settings.degraded_after_s,
            max_offline_s=self.settings.max_offline_s,
        )

    def _start_episode(self, episode: EpisodeRequest) -> None:
        self.settings = self.next_settings
        self._wanted_since_ns = None
        if self._is_open and self.servers.return_to_better(self._transport.is_available):
            self._transport.close_session()
            self._is_open = False
        self.pipeline.begin_episode(episode, notify_server=self._is_open)
        if self._begun is episode:
            self._begun = None

    def _connect(self) -> None:
        server = self.servers.current
        if self.servers.has_alternatives and not self._transport.is_available(server):
            # another server may be available; waiting here would drain the queue
            self._leave_server(ConnectionEvent.SESSION_LOST, 'server not available')
            return
        epoch = self.pipeline.next_session_epoch()
        self._liveliness.begin_session(server)
        try:
            agreement = self._transport.open_session(server, epoch)
            check_agreement(agreement)
        except ServerUnreachable as error:
            self._leave_server(ConnectionEvent.SESSION_LOST, str(error))
        except SessionRefused as refused:
            # a refusal with an unknown code may be temporary
            event = REFUSAL_EVENTS.get(refused.code, ConnectionEvent.SESSION_LOST)
            self._leave_server(event, str(refused))
        else:
            # replies of the previous session still count
            while self._receive(0.0) is not None:
                pass
            self._is_open = True
            self._failures, self._timeouts, self._unanswered_s = 0, 0, 0.0
            self._refused_since_ns, self._hold_until_ns = None, 0
            self.pipeline.begin_session(server, agreement)
            self.connection.handle(ConnectionEvent.SESSION_OPENED, f'session opened with {server}')

    def _leave_server(self, event: ConnectionEvent, reason: str) -> None:
        """Switch to the next server; after the last of them, wait."""
        self._is_open, self._failures, self._timeouts, self._unanswered_s = False, 0, 0, 0.0
        self.pipeline.end_session()
        wait_s = self.servers.mark_failed(reason)
        self._all_incompatible &= event is ConnectionEvent.INCOMPATIBLE
        # permanent only if all servers are incompatible
        is_final = self._all_incompatible and not self.servers.is_failing_over
        if is_final and self._refused_since_ns is None:
            self._refused_since_ns = self._inbox.clock()
        if event is ConnectionEvent.SESSION_LOST:
            self._refused_since_ns = None
        self.connection.handle(
            ConnectionEvent.INCOMPATIBLE if is_final else ConnectionEvent.SESSION_LOST,
            self.servers.failure_text,
        )
        if not self.servers.is_failing_over:
            self._all_incompatible = True
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
        hold_s = (self._hold_until_ns - self._inbox.clock()) / 1e9
        if hold_s > 0:
            self._receive(min(max(hold_s, MIN_WAIT_S), POLL_PERIOD_S))
            return
        pending = self.pipeline.send_request(settings)
        if pending is None:
            self._receive(INPUT_RETRY_S)
            return
        reply = self._wait_for_reply(pending)
        if reply and reply.retry_after_s > 0:
            self._on_quota(reply)
        elif reply and reply.result is ReplyResult.NO_ACTIONS:
            self._on_reply_without_actions(reply.failure)

    def _on_quota(self, reply: ProcessedReply) -> None:
        """
        Hold requests back for the time that the server names. It is healthy: another one would
        give a robot more than its quota.
        """
        self._timeouts = 0
        hold_s = min(reply.retry_after_s, MAX_HOLD_S)
        self._hold_until_ns = self._inbox.clock() + int(hold_s * 1e9)
        self.connection.handle(ConnectionEvent.REQUEST_FAILED, reply.failure)

    def _on_reply_without_actions(self, failure: str) -> None:
        self._failures, self._timeouts = self._failures + 1, 0
        if self._failures < MAX_CONSECUTIVE_FAILURES:
            self.connection.handle(ConnectionEvent.REQUEST_FAILED, failure)
        else:
            self._leave_server(ConnectionEvent.SESSION_LOST, failure)
        # limits the request rate to a server that refuses at once
        self._inbox.sleep(self.pipeline.step_s)

    def _wait_for_reply(self, pending: PendingRequest) -> ProcessedReply | None:
        """Process replies until the pending one, its deadline, or the loss of the server."""
        deadline_ns = pending.sent_ns + int(self.settings.request_timeout_s * 1e9)
        self._watchdog.watch(pending, self.settings.request_threshold_s)
        while self._is_waiting():
            now_ns = self._inbox.clock()
            if now_ns >= deadline_ns:
                self._on_timeout()
                return None
            if reason := self._watchdog.poll(pending, now_ns):
                self._leave_server(ConnectionEvent.SESSION_LOST, reason)
                return None
            wait_s = (self._watchdog.next_poll_ns(now_ns, deadline_ns) - now_ns) / 1e9
            reply = self._receive(min(wait_s, POLL_PERIOD_S))
            if reply and reply.result is not ReplyResult.DROPPED:
                return reply
            self._check_liveliness()
            self._check_timers()
        # a reply may have arrived at the same moment
        while self._receive(0.0) is not None:
            pass
        if self._next_episode and self._is_open and self.pipeline.in_flight is pending:
            self._on_given_up(pending)
        return None

    def _on_given_up(self, pending: PendingRequest) -> None:
        """
        Count the time without a reply to a request that a new episode ends: episodes that are
        shorter than request_timeout_s must not hide a silent server.
        """
        self._unanswered_s += (self._inbox.clock() - pending.sent_ns) / 1e9
        if self._unanswered_s >= self.settings.request_timeout_s:
            self._unanswered_s = 0.0
            self._count_timeout()

    def _is_waiting(self) -> bool:
        has_request = self._is_open and self.pipeline.in_flight is not None
        return has_request and not self._inbox.is_stopped and not self._next_episode

    def _on_timeout(self) -> None:
        self.pipeline.mark_overdue()
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
            self._leave_server(
                ConnectionEvent.SESSION_LOST, text.replace(no_reply, no_reply + times)
            )

    def _check_liveliness(self) -> None:
        """Leave a lost server."""
        reason = self._liveliness.loss_reason() if self._is_open else ''
        is_available = not self._liveliness.has_lease_expired and self._transport.is_available(
            self.servers.current
        )
        if reason and self._idle.is_set() and is_available:
            # it closed an idle session; the next request opens another one
            self._is_open = False
        elif reason:
            self._leave_server(ConnectionEvent.SESSION_LOST, reason)

    def _receive(self, wait_s: float) -> ProcessedReply | None:
        """Wait for a message and return the result of processing it."""
        arrived = self._inbox.take(wait_s)
        if arrived is None:
            return None
        raw, arrived_ns = arrived
        reply = self.pipeline.on_reply(raw, arrived_ns, self.settings)
        if reply.is_of_session:
            self._unanswered_s = 0.0
        if reply.result is ReplyResult.MERGED:
            self._wanted_since_ns, self._failures, self._timeouts = None, 0, 0
            if self._is_open:
                self.servers.mark_succeeded()
                self._all_incompatible = True
            self.connection.handle(ConnectionEvent.CHUNK_MERGED, '')
        elif reply.result is ReplyResult.SESSION_ENDED and self._is_open:
            self._leave_server(ConnectionEvent.SESSION_LOST, reply.failure)
        return reply
