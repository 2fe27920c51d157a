"""A worker around a fake policy, with a clock of its own; for the tests of the worker."""

from __future__ import annotations

from itertools import count

import numpy as np

from lerobot_serve.policies.fake import FakePolicy, JOINTS
from lerobot_serve.server.mailbox import Mail
from lerobot_serve.server.sessions import Session
from lerobot_serve.server.statistics import Statistics
from lerobot_serve.server.worker import Worker
from lerobot_serve.wire import chunk as wire_chunk
from lerobot_serve.wire import images
from lerobot_serve.wire import observation as wire_observation
from lerobot_serve.wire.header import Header
from lerobot_serve.wire.observation import Observation
from lerobot_serve.wire.schema import Codec, Flag, MsgType
from lerobot_serve.wire.session import SessionAsk

FRONT = 'observation.images.front'
FRAME = np.arange(8 * 16 * 3, dtype=np.uint8).reshape(8, 16, 3)
HEADER = Header(3, -5, 7, 2, 1, MsgType.OBSERVATION, Flag.EPISODE_START | 128)
RAW = images.encode(FRONT, FRAME, Codec.RAW)
JPEG = images.encode(FRONT, FRAME, Codec.JPEG)
OBSERVATION = Observation(
    HEADER, 'robot_1', 'episode_1', np.array([[0.1, 0.2, 0.3]], np.float32), (RAW,)
)
ASK = SessionAsk('robot_1', 1, 7, '/robot_1/chunk', JOINTS, JOINTS, (), 30.0)
SESSION = Session(ASK, 'robot_1#7', 1, 'fold the towel', ())
PREFIX = np.full((2, 3), 0.5, np.float32)


class Bench:
    """One worker around one policy, with a clock that ticks a millisecond at each look."""

    def __init__(self, policy: FakePolicy) -> None:
        ticks = count(1_000_000, 1_000_000)
        self.policy, self.statistics = policy, Statistics()
        self.worker = Worker(
            policy,
            slot='a',
            statistics=self.statistics,
            image_threads=1,
            clock=lambda: next(ticks),
        )

    def answer(self, observation: Observation | bytes, session: Session = SESSION):
        raw = observation
        if isinstance(observation, Observation):
            raw = wire_observation.encode(observation)
        answer = self.worker.answer(Mail(session, raw, 0, 4))
        return wire_chunk.decode(wire_chunk.encode(answer))


def bench(predict=None, **changes: object) -> Bench:
    return Bench(FakePolicy(predict, **changes))
