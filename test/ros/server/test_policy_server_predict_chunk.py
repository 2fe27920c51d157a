# SPDX-License-Identifier: Apache-2.0
"""The action PredictChunk of a policy server: one observation in, one chunk out, no session."""

from __future__ import annotations

from action_msgs.msg import GoalStatus
import numpy as np
import pytest
from support.nodes.predict_chunk_rig import message_from_observation

from lerobot_serve.contract.data_path.message_parts import Image
from lerobot_serve.contract.image_codec import encode as encode_image
from lerobot_serve.contract.schema import Codec, Status
from lerobot_serve.ros.package_share import shared_file
from lerobot_serve_interfaces.msg import Observation

STATE = np.linspace(-1, 1, 6, dtype=np.float32)
NULL = {'policy_kind': 'null', 'policy_path': 'joints=6,chunk=30,cameras=,fps=30'}
REACH = shared_file('config/policies/reach')
BUILTIN_STATE = (0.1, -0.2, 0.3, 0.0, 0.1, 0.2)


def asking(state: np.ndarray = STATE, task: str = '') -> Observation:
    return Observation(observation_steps=1, state=state.tolist(), task=task)


def rows(chunk) -> np.ndarray:
    return np.reshape(chunk.chunk_robot.data, (chunk.chunk_robot.rows, -1))


def test_a_caller_without_a_session_gets_a_chunk(rig):
    rig.start(**NULL)
    status, chunk = rig.predict(asking()).result()
    assert (status, chunk.status) == (GoalStatus.STATUS_SUCCEEDED, Status.OK)
    assert rows(chunk).shape == (30, 6)
    assert np.array_equal(rows(chunk)[0], STATE)
    assert chunk.policy.startswith('null@')
    assert rig.status().active_sessions == 0


def test_the_place_in_the_queue_is_feedback(rig):
    rig.start(**NULL)
    places = []

    def ask() -> list[int]:
        goal = rig.predict(
            asking(),
            feedback_callback=lambda message: places.append(message.feedback.queue_position),
        )
        assert goal.result()[0] == GoalStatus.STATUS_SUCCEEDED
        return places

    # a goal that comes before the server knows the subscription has no feedback
    rig.wait(ask, 'the server knows the subscription')
    before = len(places)
    ask()
    rig.wait(lambda: len(places) > before, 'the place in the queue')
    assert places == [0] * (before + 1)


@pytest.mark.slow
@pytest.mark.parametrize('codec', tuple(Codec), ids=lambda codec: codec.name)
def test_the_builtin_policy_answers_with_its_cameras(rig, codec):
    pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
    rig.start(policy_path=REACH)
    served = rig.describe()
    pictures = [picture(c.name, c.height, c.width, codec) for c in served.cameras]
    assert pictures
    client = rig.client(cameras=tuple(served.cameras), **names(served))
    state = np.array(BUILTIN_STATE[: len(served.state_names)], np.float32)[None]
    observation = client.observation(state=state, images=tuple(pictures))
    status, chunk = rig.predict(message_from_observation(observation)).result()
    assert (status, chunk.status_text) == (GoalStatus.STATUS_SUCCEEDED, '')
    assert rows(chunk).shape == (served.chunk_size, len(served.action_names))
    streamed = client.round_trip(state=state, images=tuple(pictures))
    assert np.array_equal(rows(chunk), streamed.robot)


def picture(name: str, height: int, width: int, codec: Codec) -> Image:
    pixels = np.random.default_rng(3).integers(0, 255, (height, width, 3), np.uint8)
    return encode_image(name, pixels, codec)


def names(served) -> dict[str, tuple[str, ...]]:
    return {
        'state_names': tuple(served.state_names),
        'action_names': tuple(served.action_names),
    }


BAD = {
    'short': (asking(STATE[:5]), Status.BAD_OBSERVATION, '6 values'),
    'empty': (Observation(), Status.BAD_OBSERVATION, 'cannot be 0 observations'),
    'nan': (asking(STATE * np.float32('nan')), Status.BAD_OBSERVATION, 'joint_0.pos'),
    'raises': (asking(task='raise'), Status.POLICY_ERROR, 'raised on purpose'),
    'gives_nan': (asking(task='nan'), Status.NOT_FINITE, 'NaN'),
}


def test_what_cannot_be_answered_is_aborted_with_the_reason(rig, log_of_rig):
    rig.start(policy_kind='steered')
    for observation, code, words in BAD.values():
        status, chunk = rig.predict(observation).result()
        assert status == GoalStatus.STATUS_ABORTED
        assert chunk.status == code
        assert words in chunk.status_text
        assert not chunk.chunk_robot.data
    status, chunk = rig.predict(asking()).result()
    assert (status, chunk.status) == (GoalStatus.STATUS_SUCCEEDED, Status.OK)
    assert 'Traceback' not in log_of_rig('policy_server')


def test_what_waits_can_be_cancelled_and_what_is_at_work_cannot(rig):
    rig.steering.turns.close_gate()
    rig.start(policy_kind='steered', status_period_s=60.0)
    working = rig.predict(asking())
    rig.wait_for_events('predict')
    waiting, other = rig.predict(asking()), rig.predict(asking(2 * STATE))
    rig.wait_for_requests(3)
    assert waiting.cancel()
    status, chunk = waiting.result()
    assert status == GoalStatus.STATUS_CANCELED
    assert not chunk.chunk_robot.data
    assert not working.cancel()
    assert not working.done()
    rig.steering.turns.open_gate()
    for goal, state in ((working, STATE), (other, 2 * STATE)):
        status, chunk = goal.result()
        assert status == GoalStatus.STATUS_SUCCEEDED
        assert np.array_equal(rows(chunk)[0], state)
    # the cancelled one never reached the policy
    assert len(rig.steering.events('predict')) == 2
    assert rig.drops() == {'withdrawn': 1}


@pytest.mark.parametrize('state', ['unconfigured', 'inactive'])
def test_a_server_that_is_not_active_says_so(rig, state):
    rig.start(until='unconfigured', autostart=False, policy_kind='steered')
    if state == 'inactive':
        assert rig.change_state('configure')
    status, chunk = rig.predict(asking()).result()
    assert status == GoalStatus.STATUS_ABORTED
    assert chunk.status == Status.DRAINING
    assert {'unconfigured': 'configure', 'inactive': 'activate'}[state] in chunk.status_text
    assert not rig.steering.events('predict')


def test_streaming_robots_and_goals_are_served_side_by_side(rig):
    rig.start(policy_kind='steered')
    client = rig.client()
    for number in range(20):
        state = STATE + number
        goal = rig.predict(asking(-state))
        streamed = client.round_trip(state=state[None])
        status, chunk = goal.result()
        assert (streamed.status, status) == (Status.OK, GoalStatus.STATUS_SUCCEEDED)
        assert np.array_equal(streamed.robot[0], state)
        assert np.array_equal(rows(chunk)[0], -state)
    assert len(rig.steering.events('predict')) == 40
    assert not rig.drops()
