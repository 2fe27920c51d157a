# SPDX-License-Identifier: Apache-2.0
"""The requester when a policy looks back: what it sends, and how old that is."""

from __future__ import annotations

import numpy as np
import pytest
from support.edge.requester_rig import Bench, MS, played, starting

from lerobot_serve.contract.data_path import execution_report as wire_executed
from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.header import Header
from lerobot_serve.contract.data_path.message_parts import Image
from lerobot_serve.contract.data_path.observation import Observation
from lerobot_serve.contract.limits import SCHEMA_VERSION
from lerobot_serve.contract.schema import Codec, Flag, MsgType
from lerobot_serve.edge.session.settings import EpisodeRequest
from lerobot_serve.edge.session.transport.transport import SessionAgreement

FRAME = Image('front', 2, 2, bytes(range(12)), Codec.RAW)


@pytest.fixture
def start():
    with starting() as begin:
        yield begin


class LookingBack(Bench):
    """A requester whose server wants 3 observations, 2 control steps apart."""

    def __init__(self, **pace: object) -> None:
        super().__init__(**pace)
        self.transport.agreement = SessionAgreement(SCHEMA_VERSION, 3, 2)
        self.observations.images = (FRAME,)
        self.step = 0

    def live(self, steps: int = 1) -> None:
        """Let control steps of 10 ms pass, with the number of the step as the robot's state."""
        for _ in range(steps):
            self.step += 1
            self.now_ns += 10 * MS
            self.inputs.deposit('state', np.full(3, self.step, np.float32), self.now_ns)
            self.history.record(self.step, self.now_ns)


def rows(request: Observation) -> list[float]:
    assert request.state.shape == (3, 3)
    return request.state[:, 0].tolist()


def test_a_request_carries_the_observations_that_the_server_asked_for(start):
    bench = start(LookingBack())
    request = bench.request()
    # no control step has passed since the session was opened
    assert rows(request) == [0, 0, 0]
    bench.live(7)
    bench.answer(request)
    request = bench.request()
    assert rows(request) == [3, 5, 7]
    assert [(image.name, image.steps_back) for image in request.images] == [
        ('front', 4),
        ('front', 2),
        ('front', 0),
    ]
    bench.live(3)
    bench.answer(request)
    assert rows(bench.request()) == [6, 8, 10]


def test_what_is_played_is_as_old_as_the_present_observation(start):
    bench = start(LookingBack())
    request = bench.request()
    bench.live(7)
    bench.answer(request)
    request = bench.request()
    assert played(bench)
    bench.live(1)
    bench.answer(request)
    bench.request()
    assert bench.actions.take().source.captured_ns == 70 * MS


def test_after_a_reset_nothing_of_the_old_episode_is_sent(start):
    bench = start(LookingBack())
    request = bench.request()
    bench.live(7)
    bench.requester.begin_episode(EpisodeRequest())
    request = bench.request()
    assert request.header.episode == 1
    assert rows(request) == [7, 7, 7]
    bench.live(3)
    bench.answer(request)
    assert rows(bench.request()) == [8, 8, 10]


def test_a_new_session_goes_on_with_the_history_of_the_episode(start):
    bench = start(LookingBack(request_timeout_s=1.0))
    bench.request()
    bench.live(7)
    bench.now_ns += 1000 * MS
    bench.inbox.put_reply(b'anything wakes the thread')
    request = bench.request()
    assert request.header.session_epoch == 1
    assert rows(request) == [3, 5, 7]


def test_a_gap_is_counted(start):
    bench = start(LookingBack())
    request = bench.request()
    bench.live(4)
    bench.step += 1
    bench.live(2)
    bench.answer(request)
    assert rows(bench.request()) == [6, 6, 7]
    assert bench.history.gaps == 1


def test_a_session_of_one_observation_sends_the_newest_of_everything_and_no_more():
    bench, sent = Bench(), []
    bench.observations.images, bench.transport.send = (FRAME,), sent.append
    bench.requester._connect()
    for step in range(5):
        bench.history.record(step, 0)
    bench.now_ns = 5 * MS
    bench.inputs.deposit('state', np.array([1, 2, 3], np.float32), 4 * MS)
    pending = bench.pipeline.send_request(bench.settings)
    header = Header(1, 5 * MS, 0, 0, SCHEMA_VERSION, MsgType.OBSERVATION, Flag.EPISODE_START)
    expected = Observation(
        header,
        'robot_1',
        'robot_1-ffffffff-0001',
        np.array([[1, 2, 3]], np.float32),
        (FRAME,),
        'fold the towel',
        extensions=(wire_executed.encode(bench.executed),),
    )
    assert sent == [wire_observation.encode(expected)]
    assert pending.captured_ns == 4 * MS
