# SPDX-License-Identifier: Apache-2.0
"""
Many robots in one process, each with one request in flight: they ask again as soon as they were
answered (`run`), or at a rate (`pace`).

Over ROS 2 they share reply topics, as robots behind a router do; over Zenoh each has a connection
of its own. The threads that receive take chunks and, in `run`, send the next requests; the main
thread opens, begins, waits and reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
import struct
import sys
import threading
import time

from msgspec.structs import replace
import numpy as np

from benchmarks.harness.client import SERVER
from benchmarks.harness.fleet_connections import (
    FleetConnections,
    RosFleetConnections,
    SpreadFleetConnections,
    ZenohFleetConnections,
)
from benchmarks.harness.request_session import session_request, STATE
from benchmarks.peers.paced_robots import due_s, LOST_AFTER_S
from lerobot_serve.contract import image_codec
from lerobot_serve.contract.cdr import START
from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.header import Header, read_envelope
from lerobot_serve.contract.data_path.observation import Observation
from lerobot_serve.contract.limits import SCHEMA_VERSION
from lerobot_serve.contract.records import OpenSessionRequest
from lerobot_serve.contract.schema import Codec, Flag, MsgType
from lerobot_serve.ros.node.steady_clock import SteadyClockNode
from lerobot_serve.ros.process.node_runtime import NodeRuntime

SEQ = struct.Struct('<Q')


@dataclass(slots=True)
class LoadRobot:
    """
    One robot: its request as bytes, of which only the number changes within an episode, and what
    it lived. Every `episode_requests` an episode begins; 0: it has one for ever.
    """

    ask: OpenSessionRequest
    observation: Observation
    episode_requests: int = 0
    raw: bytearray = field(default_factory=bytearray)
    seq: int = 0
    sent_ns: int = 0
    sent_at: int = 0
    is_waiting: bool = False
    latencies_ms: list[float] = field(default_factory=list)
    others_served: list[int] = field(default_factory=list)

    def next_request(self, now_ns: int, answers: int) -> bytes:
        """Return the next request; `answers` counts those of all robots so far."""
        self._begin_episode()
        self.seq += 1
        self.sent_ns, self.sent_at, self.is_waiting = now_ns, answers, True
        SEQ.pack_into(self.raw, START, self.seq)
        return bytes(self.raw)

    def _begin_episode(self) -> None:
        """Encode the request again where its episode changes, or is no longer at its start."""
        episode, since = divmod(self.seq, self.episode_requests or sys.maxsize)
        if self.raw and (since > 1 or not self.episode_requests):
            return
        header = replace(
            self.observation.header, episode=episode, flags=0 if since else Flag.EPISODE_START
        )
        name = f'{self.observation.episode_id} {episode}'
        changed = replace(self.observation, header=header, episode_id=name)
        self.raw = bytearray(wire_observation.encode(changed))


@dataclass(slots=True)
class PacedCounts:
    """
    What became of the requests of `pace`: answered, or given up as lost after LOST_AFTER_S. `late`
    answers came after that; `passed_over` are turns at which a robot was still waiting.
    """

    sent: int = 0
    answered: int = 0
    lost: int = 0
    late: int = 0
    passed_over: int = 0
    seconds: float = 0.0

    @property
    def counts(self) -> dict[str, int]:
        return {name: count for name, count in asdict(self).items() if name != 'seconds'}


class LoadGenerator(SteadyClockNode):
    """See the module."""

    def __init__(
        self,
        runtime: NodeRuntime,
        servers: Sequence[str] = (SERVER,),
        topics: int = 1,
        endpoints: Sequence[str] = (),
        *,
        shared_memory: bool = True,
        uses_local: bool = False,
    ) -> None:
        """
        Each robot asks one of the servers or routers, in turn. Those of one listen on so many
        reply topics, in turn; with `endpoints`, one for each server, they reach it over Zenoh,
        without `shared_memory` as from machines of their own, with `uses_local` on the local path.
        """
        name = 'swarm_local' if uses_local else 'swarm_zenoh' if endpoints else 'swarm'
        super().__init__(name, context=runtime.context)
        connections: list[FleetConnections] = [
            ZenohFleetConnections(
                endpoints[number],
                server,
                self._on_chunk,
                shared_memory=shared_memory,
                uses_local=uses_local,
            )
            if endpoints
            else RosFleetConnections(self, runtime, server, topics, self._on_chunk)
            for number, server in enumerate(servers)
        ]
        self._connections = SpreadFleetConnections(connections)
        self.robots: dict[str, LoadRobot] = {}
        self.failures: dict[str, int] = {}
        self.paced = PacedCounts()
        self._answers = 0
        self._running = self._asks_again = False
        self._lock = threading.Lock()

    def open(
        self,
        count: int,
        frames: dict[str, np.ndarray],
        codec: Codec = Codec.JPEG,
        episode_requests: int = 0,
    ) -> None:
        """
        Open so many more sessions, with episodes of so many requests, or with one for ever. Raises
        Refused and UserError.
        """
        encoded = tuple(image_codec.encode(n, f, codec) for n, f in frames.items())
        opened = len(self.robots)
        for number in range(opened, opened + count):
            name = f'robot_{number}'
            session = session_request('', frames, codec, name)
            session = replace(session, instance=number, session_epoch=number + 1)
            header = Header(0, 0, number + 1, 0, SCHEMA_VERSION, MsgType.OBSERVATION)
            state = np.full_like(STATE, number / 100)
            request = Observation(header, name, f'episode of {name}', state, encoded)
            session = self._connections.open(session)
            self.robots[name] = LoadRobot(session, request, episode_requests)
        self._connections.wait_until_matched()

    def close(self) -> None:
        """End all sessions."""
        for robot in self.robots.values():
            self._connections.close(robot.ask)
        self.robots = {}

    @property
    def latencies_ms(self) -> list[float]:
        """Return the round trips of all robots that were noted."""
        return [ms for robot in self.robots.values() for ms in robot.latencies_ms]

    def run(self, seconds: float) -> float:
        """
        Let all robots ask for `seconds`, and return the time that really passed [s]. What was
        noted before is forgotten.
        """
        with self._lock:
            for robot in self.robots.values():
                robot.latencies_ms, robot.others_served = [], []
            self._running = self._asks_again = True
        begin_ns = time.monotonic_ns()
        for robot in list(self.robots.values()):
            self._ask(robot)
        deadline_ns = begin_ns + int(seconds * 1e9)
        while (left_ns := deadline_ns - time.monotonic_ns()) > 0:
            time.sleep(min(0.1, left_ns / 1e9))
            self._ask_again_for_the_lost()
        with self._lock:
            self._running = False
        return (time.monotonic_ns() - begin_ns) / 1e9

    def pace(self, seconds: float, rate_hz: float) -> PacedCounts:
        """
        Let every robot ask so many times a second, each at a point of the period of its own, and
        wait for what is under way. What was noted before is forgotten.
        """
        with self._lock:
            for robot in self.robots.values():
                robot.latencies_ms, robot.others_served = [], []
                robot.is_waiting = False
            self.paced, self.failures = PacedCounts(), {}
            self._running, self._asks_again = True, False
        begin_ns = time.monotonic_ns()
        for turn_s, robot in self._turns(seconds, rate_hz):
            time.sleep(max(0.0, turn_s - (time.monotonic_ns() - begin_ns) / 1e9))
            self._take_turn(robot)
        self.paced.seconds = (time.monotonic_ns() - begin_ns) / 1e9
        self._wait_for_the_last()
        return self.paced

    def _turns(self, seconds: float, rate_hz: float) -> Iterator[tuple[float, LoadRobot]]:
        """Return when whose turn it is, in order of time; the same in every run."""
        for turns_s in due_s(len(self.robots), seconds, rate_hz).T:
            yield from zip(turns_s, self.robots.values(), strict=True)

    def _take_turn(self, robot: LoadRobot) -> None:
        if self._still_waits(robot):
            self.paced.passed_over += 1
            return
        self.paced.sent += 1
        self._ask(robot)

    def _still_waits(self, robot: LoadRobot) -> bool:
        """Whether its answer may yet come; what took too long is given up and counted."""
        with self._lock:
            if robot.is_waiting and time.monotonic_ns() - robot.sent_ns > LOST_AFTER_S * 1e9:
                robot.is_waiting = False
                self.paced.lost += 1
            return robot.is_waiting

    def _wait_for_the_last(self) -> None:
        while any(self._still_waits(robot) for robot in self.robots.values()):
            time.sleep(0.02)
        with self._lock:
            self._running = False

    def _ask(self, robot: LoadRobot) -> None:
        with self._lock:
            raw = robot.next_request(time.monotonic_ns(), self._answers)
        self._connections.send(robot.ask, raw)

    def _ask_again_for_the_lost(self) -> None:
        before_ns = time.monotonic_ns() - int(LOST_AFTER_S * 1e9)
        for robot in list(self.robots.values()):
            if robot.sent_ns < before_ns:
                self._fail('lost')
                self._ask(robot)

    def _on_chunk(self, raw: bytes) -> None:
        now_ns = time.monotonic_ns()
        header, client_id, _ = read_envelope(raw)
        robot = self.robots.get(client_id)
        if robot is None:
            return
        status = wire_chunk.decode(raw).status
        with self._lock:
            if not self._running:
                return
            if header.seq != robot.seq or not robot.is_waiting:
                self.paced.late += 1
                return
            robot.is_waiting = False
            self._answers += 1
            self.paced.answered += 1
            robot.latencies_ms.append((now_ns - robot.sent_ns) / 1e6)
            robot.others_served.append(self._answers - robot.sent_at - 1)
        if status:
            self._fail(f'status_{status}')
        if self._asks_again:
            self._ask(robot)

    def _fail(self, reason: str) -> None:
        with self._lock:
            self.failures[reason] = self.failures.get(reason, 0) + 1
