# SPDX-License-Identifier: Apache-2.0
"""A worker around a fake policy, with a clock of its own; for the tests of the server room."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from msgspec import structs
import numpy as np

from lerobot_serve.contract import image_codec
from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.data_path.header import Header, read_envelope
from lerobot_serve.contract.data_path.observation import Observation
from lerobot_serve.contract.schema import Codec, Flag, MsgType
from lerobot_serve.policies.base import PolicyRequest, Prediction
from lerobot_serve.server.inference.request_queue import QueuedRequest
from lerobot_serve.server.inference.worker import InferenceWorker
from lerobot_serve.server.observability.server_statistics import ServerStatistics
from lerobot_serve.server.sessions.session_table import Session
from support.contract.session_request import session_request
from support.replacing import replace
from support.server.fake_policy import FakePolicy, JOINTS

FRONT = 'observation.images.front'
FRAME = np.arange(8 * 16 * 3, dtype=np.uint8).reshape(8, 16, 3)
HEADER = Header(3, -5, 7, 2, 1, MsgType.OBSERVATION, Flag.EPISODE_START | 128)
RAW = image_codec.encode(FRONT, FRAME, Codec.RAW)
JPEG = image_codec.encode(FRONT, FRAME, Codec.JPEG)
OBSERVATION = Observation(
    HEADER, 'robot_1', 'episode_1', np.array([[0.1, 0.2, 0.3]], np.float32), (RAW,)
)
ASK = session_request('robot_1', 7, '/robot_1/action_chunk', JOINTS)
SESSION = Session(ASK, 'robot_1#7', 1, 'fold the towel', ())
PREFIX = np.full((2, 3), 0.5, np.float32)
ROWS = np.zeros((4, 3), np.float32)
MS = 1_000_000


class Bench:
    """One worker around one policy, with a clock that ticks a millisecond at each look."""

    def __init__(self, policy: FakePolicy) -> None:
        ticks = count(MS, MS)
        self.policy, self.statistics = policy, ServerStatistics()
        self.worker = InferenceWorker(
            policy,
            slot='a',
            statistics=self.statistics,
            image_threads=1,
            clock=lambda: next(ticks),
        )

    def answer(self, observation: Observation | bytes, session: Session = SESSION) -> Chunk:
        (chunk,) = self.answer_all(queued(observation, session))
        return chunk

    def answer_all(self, *batch: QueuedRequest) -> list[Chunk]:
        """Return the chunks in the order of the mails, as they arrive at the robots."""
        answers = self.worker.process(list(batch))
        assert len(answers) == len(batch)
        chunks = {id(answered): chunk for answered, chunk in answers}
        return [wire_chunk.decode(wire_chunk.encode(chunks[id(asked)])) for asked in batch]


def bench(predict: Callable | None = None, **changes: object) -> Bench:
    return Bench(FakePolicy(predict, **changes))


def queued(observation: Observation | bytes, session: Session = SESSION) -> QueuedRequest:
    raw = observation
    if isinstance(observation, Observation):
        raw = wire_observation.encode(observation)
    return QueuedRequest(session, raw, read_envelope(raw).header, 0, superseded=4)


def robot(number: int, **changes: object) -> tuple[Observation, Session]:
    """Return what one of several robots asks, and its session; each stands elsewhere."""
    name = f'robot_{number}'
    session = replace(
        SESSION, request=structs.replace(ASK, client_id=name), session_id=f'{name}#7'
    )
    state = np.full((1, 3), number, np.float32)
    return replace(OBSERVATION, client_id=name, state=state, **changes), session


def gives(model: object, robot: object = None) -> Callable[[PolicyRequest], Prediction]:
    """Return a policy that always gives this; `robot` is `model` unless it is told."""
    return lambda _: Prediction(model, model if robot is None else robot)


def raises(error: BaseException) -> Callable[[PolicyRequest], Prediction]:
    def predict(_: PolicyRequest) -> Prediction:
        raise error

    return predict
