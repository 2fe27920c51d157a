# SPDX-License-Identifier: Apache-2.0
"""
The transport of the node: publishes requests, replies and decisions, queues session work.

Called by any thread of the dispatcher. No ROS but for the clients and publishers it is given.
"""

from __future__ import annotations

from collections.abc import Callable
import threading
from typing import Any, Protocol

from lerobot_serve.router.api.messages import routing_decision
from lerobot_serve.router.data_path.in_flight import InFlightRequest
from lerobot_serve.router.monitoring.drop_counters import DropCounters
from lerobot_serve.router.monitoring.trace_recorder import RouterTraceRecorder, trace_ids
from lerobot_serve.router.placement.placement_table import Placement
from lerobot_serve.router.sessions.client_sessions import ClientSession, ClientSessions
from lerobot_serve.router.sessions.job_queue import JobQueue
from lerobot_serve.wire import chunk as wire_chunk
from lerobot_serve.wire.chunk import Chunk, ReplySummary
from lerobot_serve.wire.errors import Malformed, Unencodable
from lerobot_serve.wire.execution_report import ExecutionReport
from lerobot_serve.wire.header import Header, read_envelope
from lerobot_serve.wire.schema import Flag, Status, TEXT_LIMIT

DRAINING_TEXT = 'the router is draining; open a session with another server'


class ReplicaSender(Protocol):
    """A client of a replica, as ros.replica_client has it."""

    def send(self, raw: bytes) -> None: ...


class ReplySender(Protocol):
    """The reply topics of clients, as ros.replies has them."""

    def send(self, topic: str, raw: bytes) -> bool: ...


class ShadowObserver(Protocol):
    """Receives references of requests and replies for comparison; never waits."""

    def on_request(
        self, robot: ClientSession, raw: bytes, header: Header, executed: ExecutionReport | None
    ) -> None: ...

    def on_reply_sent(
        self, flight: InFlightRequest, server: str, raw: bytes, answer: ReplySummary
    ) -> None: ...


class RosTransport:
    """The Transport of the node; the thread `control` runs `jobs`."""

    def __init__(
        self,
        clients: dict[str, ReplicaSender],
        replies: ReplySender,
        drops: DropCounters,
        *,
        publish: Callable[[Any], None],
        stamp: Callable[[], Any],
        warn: Callable[[str], None],
        recorder: RouterTraceRecorder | None = None,
    ) -> None:
        """`publish` sends a message, `stamp` is the present as messages have it."""
        self._clients, self._replies, self._drops = clients, replies, drops
        self._publish, self._stamp, self._warn = publish, stamp, warn
        self._is_warned, self._recorder = False, recorder
        self.jobs = JobQueue()
        self.alarm = threading.Event()
        self.shadow: ShadowObserver | None = None
        # the policy of a slot; and the job that reopens a session that a replica has lost
        self.policy_of: Callable[[str], str] = lambda slot: ''
        self.reopen_job: Callable[[ClientSession, str], None] = lambda robot, server: None

    def send(self, server: str, raw: bytes) -> None:
        self._clients[server].send(raw)

    def reply(self, robot: ClientSession, raw: bytes) -> None:
        if not self._replies.send(robot.ask.reply_topic, raw):
            self._drops.add('no_client')

    def fail(self, flight: InFlightRequest, status: Status, text: str) -> None:
        """Reply at once with a chunk without actions."""
        if self._recorder:
            self._recorder.failed(flight, status, text)
        robot = flight.robot
        chunk = Chunk(
            flight.header.answer(Flag.NONE),
            robot.ask.client_id,
            flight.episode_id,
            status=status,
            status_text=text[:TEXT_LIMIT],
            slot=flight.slot,
        )
        try:
            self.reply(robot, wire_chunk.encode(chunk))
        except Unencodable:
            self._drops.add('unencodable')

    def refuse(self, raw: bytes, robots: ClientSessions, now_ns: int) -> None:
        """Reply DRAINING to a request of an open session."""
        try:
            header, client_id, episode_id = read_envelope(raw)
        except Malformed as error:
            self._drops.add(error.reason)
            return
        robot = robots.find(client_id, header.session_epoch)
        if robot is None:
            self._drops.add('no_session')
            return
        robot.heard_ns = now_ns
        self._drops.add('draining')
        self.fail(
            InFlightRequest(robot, header, episode_id, raw, now_ns), Status.DRAINING, DRAINING_TEXT
        )

    def on_placed(
        self, robot: ClientSession, flight: InFlightRequest, placement: Placement
    ) -> None:
        if placement.missing_episode_id:
            self._note_degraded(robot)
        places = robot.places.get(placement.slot, ())
        server, policy = places[0] if places else '', self.policy_of(placement.slot)
        if self._recorder:
            self._recorder.placed(trace_ids(flight), placement, server, policy)
        self._publish(
            routing_decision(
                placement,
                stamp=self._stamp(),
                client_id=robot.ask.client_id,
                episode_id=flight.episode_id,
                policy=policy,
                server=server,
            )
        )

    def _note_degraded(self, robot: ClientSession) -> None:
        self._drops.add('no_episode_id')
        if not self._is_warned:
            self._is_warned = True
            self._warn(
                f'{robot.ask.client_id!r} sends no episode_id: each request is placed on its own '
                'and may reach another policy; set episode_id in every request'
            )

    def reopen_session(self, robot: ClientSession, server: str) -> None:
        self.jobs.put(lambda: self.reopen_job(robot, server))

    def wake(self) -> None:
        self.alarm.set()

    def on_dropped(self, flight: InFlightRequest, reason: str) -> None:
        if self._recorder:
            self._recorder.failed(flight, reason, '')

    def on_requested(
        self, robot: ClientSession, raw: bytes, header: Header, executed: ExecutionReport | None
    ) -> None:
        if self.shadow:
            self.shadow.on_request(robot, raw, header, executed)

    def on_replied(
        self, flight: InFlightRequest, server: str, raw: bytes, answer: ReplySummary
    ) -> None:
        if self._recorder:
            self._recorder.replied(flight, server, raw, answer)
        if self.shadow:
            self.shadow.on_reply_sent(flight, server, raw, answer)
