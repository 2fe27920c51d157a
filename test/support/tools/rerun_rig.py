# SPDX-License-Identifier: Apache-2.0
"""Messages of a robot for tests of the Rerun view, as CDR bytes, without ROS."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lerobot_serve.contract import records
from lerobot_serve.contract.codec import encode
from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.data_path.header import Header
from lerobot_serve.contract.data_path.message_parts import Image
from lerobot_serve.contract.data_path.observation import Observation
from lerobot_serve.contract.limits import SCHEMA_VERSION
from lerobot_serve.contract.schema import MsgType
from lerobot_serve.contract.types import Time
from lerobot_serve.tools.bags.message import (
    BagMessage,
    CHUNK,
    INTERFACES,
    OBSERVATION,
    OPEN_SESSION,
)
from support.contract.records_of import record_of
from support.tools.bag_rig import open_session_event

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
        cage: str = 'pass',
        row: int = 0,
        **fields: object,
    ) -> BagMessage:
        self.control_step += 1
        given = {'rung': 'policy', 'slot': 'prod', 'policy': 'reach@1', **fields}
        action = record_of(
            records.ExecutedAction,
            stamp=self.stamp(),
            control_step=self.control_step,
            session_epoch=1,
            episode=1,
            chunk_row=row,
            age_s=0.25,
            cage_result=cage,
            source='policy' if given['rung'] == 'policy' else 'ladder',
            client_id=self.robot,
            episode_id='ep',
            raw=np.array(wanted, np.float32),
            commanded=np.array(wanted if commanded is None else commanded, np.float32),
            **given,
        )
        return self.send(f'/{self.robot}/edge_controller/executed_action', action)

    def send(self, topic: str, record: Any) -> BagMessage:
        return self.tell(topic, f'{INTERFACES}/{type(record).__name__}', encode(record))

    def stamp(self) -> Time:
        return Time.of_ns(self.now_ns + STEP_NS + CLOCK_AHEAD_NS)

    def state(
        self,
        connection: str = 'streaming',
        *,
        dropped: dict[str, int] | None = None,
        **fields: object,
    ) -> BagMessage:
        numbers = {'queue_remaining_s': 0.5, 'action_age_s': 0.1}
        numbers |= {'round_trip_ms': 20.0, 'network_ms': 5.0}
        place = {'client_id': self.robot, 'server': '/policy_server', 'episode_id': 'ep'}
        place |= {'task': 'task', 'slot': 'prod', 'policy': 'reach@1', 'rung': 'policy'}
        state = record_of(
            records.EdgeState,
            stamp=self.stamp(),
            state=connection,
            dropped=tuple(records.DropCount(*each) for each in (dropped or {}).items()),
            **(numbers | place | fields),
        )
        return self.send(f'/{self.robot}/edge_controller/state', state)

    def decide(self, slot: str, *, moved: bool = False, split_version: int = 0) -> BagMessage:
        decision = records.RoutingDecision(
            Time.of_ns(self.now_ns),
            self.robot,
            'ep',
            'ep',
            7,
            80,
            slot,
            'reach@1',
            '/policy_server',
            moved=moved,
            split_version=split_version,
        )
        return self.send('/policy_router/routing', decision)

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
        canary = records.CanaryState(
            Time(1),
            records.CanaryState.State.named(state),
            'b',
            'new@2',
            'old@1',
            1,
            3,
            25,
            text,
            log10_evidence_not_worse=1.5,
            log10_evidence_worse=0.5,
        )
        return self.send('/policy_router/canary', canary)

    def router(
        self, slots: dict[str, tuple[str, str, int]], health: str = 'healthy'
    ) -> BagMessage:
        """Tell the state of a router; slots have policy, state and share."""
        state_of = records.SlotState.State.named
        found = tuple(
            records.SlotState(slot, policy, state_of(state), 'why', share)
            for slot, (policy, state, share) in slots.items()
        )
        state = records.RouterState(Time(1), '/policy_router', health, 'words', 50, 2, found, 1)
        return self.send('/policy_router/state', state)

    def outcome(self, episode: str, outcome: str, topic: str = '') -> BagMessage:
        number = records.EpisodeOutcome.Outcome.named(outcome)
        message = records.EpisodeOutcome(Time(1), self.robot, episode, number, 1.5, 0.5)
        return self.send(topic or f'/{self.robot}/episode_outcome', message)


def header(seq: int, msg_type: MsgType) -> Header:
    return Header(seq, 0, 1, 1, SCHEMA_VERSION, msg_type)


def open_session(robot: str, names: tuple[str, ...], fps: float) -> bytes:
    """Return the service event of a request; state and actions have the same names."""
    request = records.OpenSessionRequest(
        client_id=robot,
        session_epoch=1,
        robot_type='so101',
        fps=fps,
        state_names=names,
        action_names=names,
        cameras=(records.CameraSpec('front', 8, 8),),
        task='task',
        rtc_execution_horizon=10,
    )
    return open_session_event(request)
