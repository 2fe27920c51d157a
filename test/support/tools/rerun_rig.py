# SPDX-License-Identifier: Apache-2.0
"""Messages of a robot for tests of the Rerun view, as CDR bytes, without ROS."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lerobot_serve.tools.bags import fleet_decoding, message_decoding
from lerobot_serve.tools.bags.message import BagMessage, CHUNK, OBSERVATION
from lerobot_serve.tools.bags.service_events import (
    BYTE,
    FLOAT32,
    OPEN_SESSION,
    REQUEST_RECEIVED,
    SIZE,
    STAMP_AND_CALLER,
    UINT16,
    UINT32,
    UINT64,
)
from lerobot_serve.wire import chunk as wire_chunk
from lerobot_serve.wire import observation as wire_observation
from lerobot_serve.wire.cdr import CdrWriter
from lerobot_serve.wire.chunk import Chunk
from lerobot_serve.wire.header import Header
from lerobot_serve.wire.message_parts import Image
from lerobot_serve.wire.observation import Observation
from lerobot_serve.wire.schema import MsgType, SCHEMA_VERSION

ROBOT = 'robot_7'
JOINTS = ('shoulder_pan.pos', 'gripper.pos')
FPS = 10.0
BEGIN_NS = 1_780_000_000_000_000_000
# the clock of the robot is another one
CLOCK_AHEAD_NS = 3600 * 10**9
STEP_NS = 100_000_000


@dataclass
class Scene:
    """Messages in the making; each is received 100 ms after the last."""

    robot: str = ROBOT
    messages: list[BagMessage] = field(default_factory=list)
    now_ns: int = BEGIN_NS
    control_step: int = 0

    def tell(self, topic: str, kind: str, data: bytes) -> BagMessage:
        self.now_ns += STEP_NS
        self.messages.append(BagMessage(topic, kind, self.now_ns, data))
        return self.messages[-1]

    def session(self, names: tuple[str, ...] = JOINTS, fps: float = FPS) -> BagMessage:
        data = open_session(self.robot, names, fps)
        return self.tell('/policy_server/open_session/_service_event', OPEN_SESSION, data)

    def execute(
        self,
        wanted: list[float],
        commanded: list[float] | None = None,
        *,
        seq: int = 0,
        row: int = 0,
        cage: str = 'pass',
        rung: str = 'policy',
        policy: str = 'reach@1',
        slot: str = 'prod',
        reason: str = '',
    ) -> BagMessage:
        self.control_step += 1
        writer = CdrWriter()
        cage_result = message_decoding.CAGE_RESULTS.index(cage)
        numbers = (self.control_step, seq, 1, 1, row, 0.25)
        writer.pack(
            message_decoding.EXECUTED_HEAD,
            *stamp(self.now_ns + STEP_NS + CLOCK_AHEAD_NS),
            *numbers,
            cage_result,
            message_decoding.RUNGS.index(rung),
            message_decoding.SOURCES.index('policy' if rung == 'policy' else 'ladder'),
            align=8,
        )
        for text in (self.robot, 'ep', slot, policy, reason):
            writer.string(text, 4096)
        for values in (wanted, wanted if commanded is None else commanded):
            writer.floats(np.array(values, np.float32), 4096, 'values')
        # no policy_action, no input_ids
        for _ in range(2):
            writer.floats(np.zeros(0, np.float32), 0, 'empty')
        return self.tell(
            f'/{self.robot}/edge_controller/executed_action',
            message_decoding.EXECUTED_TYPE,
            writer.finish(),
        )

    def state(
        self,
        connection: str = 'streaming',
        *,
        rung: str = 'policy',
        reason: str = '',
        paused: bool = False,
        episode: str = 'ep',
        stalls: int = 0,
        dropped: dict[str, int] | None = None,
    ) -> BagMessage:
        writer = CdrWriter()
        writer.pack(
            message_decoding.STAMP, *stamp(self.now_ns + STEP_NS + CLOCK_AHEAD_NS), align=4
        )
        for text in (self.robot, '/policy_server', episode, 'task', 'prod', 'reach@1'):
            writer.string(text, 4096)
        number = message_decoding.STATES.index(connection)
        rung_number = message_decoding.RUNGS.index(rung)
        writer.pack(message_decoding.EDGE_FLAGS, number, rung_number, paused, 0, align=1)
        writer.string(reason, 1024)
        writer.pack(message_decoding.EDGE_TIMES, 0.5, 0.1, 20.0, 5.0, align=4)
        writer.pack(message_decoding.EDGE_COUNTS, 0, 0, 0, 0, 0, stalls, 0, align=8)
        write_drops(writer, dropped or {})
        topic = f'/{self.robot}/edge_controller/state'
        return self.tell(topic, message_decoding.STATE_TYPE, writer.finish())

    def decide(self, slot: str, *, moved: bool = False, split_version: int = 0) -> BagMessage:
        writer = CdrWriter()
        writer.pack(message_decoding.STAMP, *stamp(self.now_ns), align=4)
        for text in (self.robot, 'ep', 'ep'):
            writer.string(text, 160)
        writer.pack(message_decoding.PLACE, 7, 80, align=1)
        for text in (slot, 'reach@1', '/policy_server'):
            writer.string(text, 256)
        writer.pack(message_decoding.FLAGS, False, False, moved, align=1)
        writer.string('', 1024)
        writer.pack(message_decoding.VERSION, split_version, align=8)
        return self.tell('/policy_router/routing', message_decoding.DECISION_TYPE, writer.finish())

    def observe(
        self,
        seq: int,
        state: list[float],
        images: tuple[Image, ...] = (),
        *,
        server: str = '/policy_server',
        task: str = '',
    ) -> BagMessage:
        observation = Observation(
            header(seq, MsgType.OBSERVATION),
            self.robot,
            'ep',
            state=np.array([state], np.float32),
            images=images,
            task=task,
            queue_remaining_s=0.75,
        )
        return self.tell(
            f'{server}/observation', OBSERVATION, wire_observation.encode(observation)
        )

    def reply(self, seq: int, rows: Any = (), *, topic: str = '', **changes: Any) -> BagMessage:
        robot = np.array(rows, np.float32).reshape(len(rows), -1 if len(rows) else 0)
        fields = {'policy': 'reach@1', 'inference_ms': 12.5, **changes}
        chunk = Chunk(header(seq, MsgType.CHUNK), self.robot, 'ep', robot, robot, **fields)
        where = topic or f'/{self.robot}/edge_controller/action_chunk'
        return self.tell(where, CHUNK, wire_chunk.encode(chunk))

    def canary(self, state: str, text: str = '') -> BagMessage:
        writer = CdrWriter()
        writer.pack(message_decoding.STAMP, 1, 0, align=4)
        writer.pack(BYTE, fleet_decoding.CANARY_STATES.index(state), align=1)
        for name in ('b', 'new@2', 'old@1'):
            writer.string(name, 256)
        writer.pack(fleet_decoding.STEPS, 1, 3, align=4)
        writer.pack(BYTE, 25, align=1)
        writer.string(text, 1024)
        writer.pack(fleet_decoding.REMAINING, -1, align=4)
        writer.pack(fleet_decoding.EVIDENCE, 1, 2, 3, 4, 1.5, 0.5, 9.0, align=8)
        return self.tell('/policy_router/canary', fleet_decoding.CANARY_TYPE, writer.finish())

    def router(
        self, slots: dict[str, tuple[str, str, int]], health: str = 'healthy'
    ) -> BagMessage:
        """Tell the state of a router; slots have policy, state and share."""
        writer = CdrWriter()
        writer.pack(message_decoding.STAMP, 1, 0, align=4)
        for text in ('/policy_router', health, 'words'):
            writer.string(text, 1024)
        writer.pack(BYTE, 50, align=1)
        writer.pack(UINT32, 2, align=4)
        writer.count(len(slots), 16, 'slots')
        for slot, (policy, state, share) in slots.items():
            writer.string(slot, 16)
            writer.string(policy, 256)
            writer.pack(BYTE, fleet_decoding.SLOT_STATES.index(state), align=1)
            writer.string('why', 1024)
            writer.pack(BYTE, share, align=1)
            writer.pack(UINT32, 0, align=4)
            writer.pack(fleet_decoding.SLOT_COUNTS, *range(9), align=8)
            writer.count(0, 16, 'replicas')
        for count in (1, 2, 3):
            writer.pack(UINT64, count, align=8)
        write_drops(writer, {})
        return self.tell('/policy_router/state', fleet_decoding.ROUTER_TYPE, writer.finish())

    def outcome(self, episode: str, outcome: str, topic: str = '') -> BagMessage:
        writer = CdrWriter()
        writer.pack(message_decoding.STAMP, 1, 0, align=4)
        writer.string(self.robot, 128)
        writer.string(episode, 128)
        writer.pack(BYTE, fleet_decoding.OUTCOMES.index(outcome), align=1)
        writer.pack(fleet_decoding.SCORE, 1.5, 0.5, align=4)
        writer.string('', 1024)
        where = topic or f'/{self.robot}/episode_outcome'
        return self.tell(where, fleet_decoding.OUTCOME_TYPE, writer.finish())


def header(seq: int, msg_type: MsgType) -> Header:
    return Header(seq, 0, 1, 1, SCHEMA_VERSION, msg_type)


def stamp(time_ns: int) -> tuple[int, int]:
    return divmod(time_ns, 10**9)


def write_drops(writer: CdrWriter, dropped: dict[str, int]) -> None:
    writer.count(len(dropped), 1024, 'dropped')
    for reason, count in dropped.items():
        writer.string(reason, 64)
        writer.pack(message_decoding.COUNT, count, align=8)


def open_session(robot: str, names: tuple[str, ...], fps: float) -> bytes:
    """Return the service event of a request; state and actions have the same names."""
    writer = CdrWriter()
    writer.pack(BYTE, REQUEST_RECEIVED, align=1)
    writer.pack(STAMP_AND_CALLER, 0, 0, bytes(16), align=4)
    writer.pack(UINT64, 0, align=8)
    writer.count(1, 1, 'request')
    writer.pack(UINT16, SCHEMA_VERSION, align=2)
    writer.string(robot, 4096)
    writer.pack(UINT64, 7, align=8)
    writer.pack(UINT32, 1, align=4)
    for text in ('/reply', 'so101', ''):
        writer.string(text, 256)
    writer.pack(FLOAT32, fps, align=4)
    for _ in ('state', 'actions'):
        writer.count(len(names), 4096, 'names')
        for name in names:
            writer.string(name, 128)
    writer.count(1, 16, 'cameras')
    writer.string('front', 128)
    writer.pack(SIZE, 8, 8, 3, align=4)
    writer.string('task', 4096)
    writer.pack(BYTE, 0, align=1)
    writer.pack(UINT32, 10, align=4)
    writer.pack(BYTE, 0, align=1)
    writer.pack(FLOAT32, 0.0, align=4)
    for what in ('tags', 'extensions'):
        writer.count(0, 16, what)
    return writer.finish()
