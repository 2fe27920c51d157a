"""
What the dispatcher's thinking becomes: messages out, work for other threads. Any of its threads.

Plain but for what it is given: clients of replicas, the reply topics of robots, a publisher.
"""

from __future__ import annotations

from collections.abc import Callable
import threading
from typing import Any, Protocol

from lerobot_serve.router.drops import Drops
from lerobot_serve.router.flights import Flight
from lerobot_serve.router.jobs import Jobs
from lerobot_serve.router.messages import routing_decision
from lerobot_serve.router.recorder import ids_of, Recorder
from lerobot_serve.router.robots import Robot, Robots
from lerobot_serve.router.sticky import Placement
from lerobot_serve.wire import chunk as wire_chunk
from lerobot_serve.wire.chunk import Answer, Chunk
from lerobot_serve.wire.errors import Malformed, Unencodable
from lerobot_serve.wire.executed import Executed
from lerobot_serve.wire.header import Header, peek
from lerobot_serve.wire.schema import Flag, Status, TEXT_LIMIT

GOING = 'the router is going away; open a session elsewhere'


class Sender(Protocol):
    """A client of a replica, as ros.replica_client has it."""

    def send(self, raw: bytes) -> None: ...


class ReplyTopics(Protocol):
    """The robots' reply topics, as ros.replies has them."""

    def send(self, topic: str, raw: bytes) -> bool: ...


class Shadow(Protocol):
    """Who compares; takes copies of references, never waits."""

    def on_request(
        self, robot: Robot, raw: bytes, header: Header, executed: Executed | None
    ) -> None: ...

    def on_served(self, flight: Flight, server: str, raw: bytes, answer: Answer) -> None: ...


class Wiring:
    """The Outside of the node; `jobs` are the control thread's."""

    def __init__(
        self,
        clients: dict[str, Sender],
        replies: ReplyTopics,
        drops: Drops,
        *,
        tell: Callable[[Any], None],
        stamp: Callable[[], Any],
        warn: Callable[[str], None],
        recorder: Recorder | None = None,
    ) -> None:
        """`tell` publishes, `stamp` is the present as messages have it."""
        self._clients, self._replies, self._drops = clients, replies, drops
        self._tell, self._stamp, self._warn = tell, stamp, warn
        self._is_warned, self._recorder = False, recorder
        self.jobs = Jobs()
        self.alarm = threading.Event()
        self.shadow: Shadow | None = None
        # a slot's; and what the control thread does about a session that a replica has lost
        self.policy_of: Callable[[str], str] = lambda slot: ''
        self.reopen_job: Callable[[Robot, str], None] = lambda robot, server: None

    def send(self, server: str, raw: bytes) -> None:
        self._clients[server].send(raw)

    def reply(self, robot: Robot, raw: bytes) -> None:
        if not self._replies.send(robot.ask.reply_topic, raw):
            self._drops.add('no_client')

    def fail(self, flight: Flight, status: Status, text: str) -> None:
        """Tell a robot at once, in a chunk without actions."""
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

    def refuse(self, raw: bytes, robots: Robots, now_ns: int) -> None:
        """The router goes away: tell a robot that asks to do so elsewhere."""
        try:
            header, client_id, episode_id = peek(raw)
        except Malformed as error:
            self._drops.add(error.reason)
            return
        robot = robots.find(client_id, header.session_epoch)
        if robot is None:
            self._drops.add('no_session')
            return
        robot.heard_ns = now_ns
        self._drops.add('draining')
        self.fail(Flight(robot, header, episode_id, raw, now_ns), Status.DRAINING, GOING)

    def decided(self, robot: Robot, flight: Flight, placement: Placement) -> None:
        if placement.degraded:
            self._note_degraded(robot)
        places = robot.places.get(placement.slot, ())
        server, policy = places[0] if places else '', self.policy_of(placement.slot)
        if self._recorder:
            self._recorder.decided(ids_of(flight), placement, server, policy)
        self._tell(
            routing_decision(
                placement,
                stamp=self._stamp(),
                client_id=robot.ask.client_id,
                episode_id=flight.episode_id,
                policy=policy,
                server=server,
            )
        )

    def _note_degraded(self, robot: Robot) -> None:
        self._drops.add('no_episode_id')
        if not self._is_warned:
            self._is_warned = True
            self._warn(
                f'{robot.ask.client_id!r} sends no episode_id: each of its requests is routed for '
                'itself, and may meet another policy; give every episode a name'
            )

    def reopen(self, robot: Robot, server: str) -> None:
        self.jobs.put(lambda: self.reopen_job(robot, server))

    def wake(self) -> None:
        self.alarm.set()

    def unanswered(self, flight: Flight, reason: str) -> None:
        if self._recorder:
            self._recorder.failed(flight, reason, '')

    def asked(self, robot: Robot, raw: bytes, header: Header, executed: Executed | None) -> None:
        if self.shadow:
            self.shadow.on_request(robot, raw, header, executed)

    def served(self, flight: Flight, server: str, raw: bytes, answer: Answer) -> None:
        if self._recorder:
            self._recorder.answered(flight, server, raw, answer)
        if self.shadow:
            self.shadow.on_served(flight, server, raw, answer)
