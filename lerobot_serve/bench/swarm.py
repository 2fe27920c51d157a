"""
Many robots in one process: each asks again as soon as it was answered, as fast as it can.

They share one reply topic, as the robots of a router do. The thread `answers` takes chunks and
sends the next requests; the main thread opens, begins, waits and reads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
import struct
import threading
import time

import numpy as np
from rclpy.node import Node

from lerobot_serve.bench.client import LIFESPAN_S, READY_TIMEOUT_S, SERVER
from lerobot_serve.ros import qos
from lerobot_serve.ros.lane import Lane
from lerobot_serve.ros.runtime import Runtime, UserError
from lerobot_serve.ros.session_client import SessionClient
from lerobot_serve.wire import chunk as wire_chunk
from lerobot_serve.wire import images
from lerobot_serve.wire import observation as wire_observation
from lerobot_serve.wire.cdr import START
from lerobot_serve.wire.header import Header, peek
from lerobot_serve.wire.observation import Observation
from lerobot_serve.wire.schema import Codec, Flag, MsgType, SCHEMA_VERSION
from lerobot_serve.wire.session import CameraSpec, SessionAsk
from lerobot_serve_interfaces.msg import ActionChunk

REPLIES = '/bench/swarm_chunk'
SEQ = struct.Struct('<Q')
FPS = 30.0
LOST_AFTER_S = 5.0


@dataclass(slots=True)
class Robot:
    """One robot: its request as bytes, of which only the number changes, and what it lived."""

    ask: SessionAsk
    raw: bytearray
    seq: int = 0
    sent_ns: int = 0
    sent_at: int = 0
    latencies_ms: list[float] = field(default_factory=list)
    others_served: list[int] = field(default_factory=list)

    def next_request(self, now_ns: int, answers: int) -> bytes:
        """Return the next request; `answers` counts those of all robots so far."""
        self.seq += 1
        self.sent_ns, self.sent_at = now_ns, answers
        SEQ.pack_into(self.raw, START, self.seq)
        return bytes(self.raw)


class Swarm(Node):
    """See the module."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__('swarm', context=runtime.context)
        self._sessions = SessionClient(self, SERVER, lifespan_s=LIFESPAN_S, of_many=True)
        self._lane = Lane(self, ActionChunk, REPLIES, qos.ACTION_CHUNK, self._on_chunk)
        runtime.thread('answers', partial(self._lane.run, runtime.stop), self._lane.wake)
        self.robots: dict[str, Robot] = {}
        self.failures: dict[str, int] = {}
        self._answers = 0
        self._running = False
        self._lock = threading.Lock()

    def open(self, count: int, frames: dict[str, np.ndarray], joints: tuple[str, ...]) -> None:
        """Open so many sessions. Raises Refused, Unreachable and UserError."""
        encoded = tuple(images.encode(n, f, Codec.JPEG) for n, f in frames.items())
        cameras = tuple(CameraSpec(name, *frame.shape) for name, frame in frames.items())
        for number in range(count):
            name = f'robot_{number}'
            ask = SessionAsk(name, number, number + 1, REPLIES, joints, joints, cameras, FPS)
            header = Header(
                0, 0, number + 1, 0, SCHEMA_VERSION, MsgType.OBSERVATION, Flag.EPISODE_START
            )
            state = np.full((1, len(joints)), number / 100, np.float32)
            request = Observation(header, name, f'episode of {name}', state, encoded)
            self._sessions.open(ask, READY_TIMEOUT_S)
            self.robots[name] = Robot(ask, bytearray(wire_observation.encode(request)))
        if not self._sessions.wait_until_wired(self._lane.publisher_count, READY_TIMEOUT_S):
            raise UserError('the topics of the server were not found')

    def close(self) -> None:
        """End all sessions."""
        for robot in self.robots.values():
            self._sessions.close(robot.ask, READY_TIMEOUT_S)
        self.robots = {}

    def run(self, seconds: float) -> float:
        """
        Let all robots ask for `seconds`, and return the time that really passed [s]. What was
        noted before is forgotten.
        """
        with self._lock:
            for robot in self.robots.values():
                robot.latencies_ms, robot.others_served = [], []
            self._running = True
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

    def _ask(self, robot: Robot) -> None:
        with self._lock:
            raw = robot.next_request(time.monotonic_ns(), self._answers)
        self._sessions.send(raw)

    def _ask_again_for_the_lost(self) -> None:
        before_ns = time.monotonic_ns() - int(LOST_AFTER_S * 1e9)
        for robot in list(self.robots.values()):
            if robot.sent_ns < before_ns:
                self._fail('lost')
                self._ask(robot)

    def _on_chunk(self, raw: bytes) -> None:
        now_ns = time.monotonic_ns()
        header, client_id, _ = peek(raw)
        robot = self.robots.get(client_id)
        if robot is None or header.seq != robot.seq:
            return
        status = wire_chunk.decode(raw).status
        with self._lock:
            if not self._running:
                return
            self._answers += 1
            robot.latencies_ms.append((now_ns - robot.sent_ns) / 1e6)
            robot.others_served.append(self._answers - robot.sent_at - 1)
        if status:
            self._fail(f'status_{status}')
        self._ask(robot)

    def _fail(self, reason: str) -> None:
        self.failures[reason] = self.failures.get(reason, 0) + 1
