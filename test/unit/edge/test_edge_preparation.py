# SPDX-License-Identifier: Apache-2.0
"""What is worked out from parameters and robot file before an edge controller runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.replacing import replace

from lerobot_serve.cage.description import Interlock
from lerobot_serve.cage.limits_encoding import decode_limits
from lerobot_serve.contract.records import CameraSpec, OpenSessionRequest
from lerobot_serve.contract.schema import Codec
from lerobot_serve.contract.types import KeyValue
from lerobot_serve.edge import wiring
from lerobot_serve.edge.action_queue import ActionQueue, ChunkSource
from lerobot_serve.edge.control.authority import OperatingConditions
from lerobot_serve.edge.control.rungs import RungKind
from lerobot_serve.edge.decisions import RobotDecisions
from lerobot_serve.edge.inputs.state_reader import RobotState
from lerobot_serve.edge.observability.listener import EdgeListener
from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.edge.robot.description import (
    input_max_ages_ns,
    input_topics,
    RobotDescription,
    state_input_names,
    StateSource,
)
from lerobot_serve.edge.robot.file import load
from lerobot_serve.edge.session.connection import ConnectionState
from lerobot_serve.edge.session.inbox import Inbox
from lerobot_serve.edge.session.transport.fake_transport import FakeObservations, FakeTransport
from lerobot_serve.edge.session_request import chunk_rate_warnings, make_session_request
from lerobot_serve.edge.wiring import EdgeCore, resolve_client_id
from lerobot_serve.parameters import ParameterError

CAMERAS = ('observation.images.front', 'observation.images.wrist')


@pytest.fixture
def robot(repository: Path) -> RobotDescription:
    return load(repository / 'config' / 'robots' / 'sim_arm.yaml')


# what is asked of a server


def ask(robot: RobotDescription, **changes: object) -> OpenSessionRequest:
    return make_session_request(
        EdgeParameters(required_policy='act', **changes),
        robot,
        client_id='robot_1',
        instance=7,
        epoch=3,
        task='reach',
    )


def test_it_asks_for_what_the_robot_is(robot):
    asked = ask(robot, codec='raw', rtc=True, execution_horizon=8, tags=('lab=B=3', 'shift='))
    assert asked.tags == (KeyValue('lab', 'B=3'), KeyValue('shift'))
    assert (asked.client_id, asked.instance, asked.session_epoch) == ('robot_1', 7, 3)
    assert (asked.robot_type, asked.fps) == ('sim_arm', 30.0)
    assert (asked.task, asked.policy, asked.codec) == ('reach', 'act', Codec.RAW)
    assert (asked.wants_rtc, asked.rtc_execution_horizon) == (True, 8)
    assert asked.state_names == asked.action_names == robot.action_names
    assert asked.cameras == tuple(CameraSpec(name) for name in CAMERAS)


def test_it_asks_with_the_names_of_the_policy(robot):
    names = {'gripper.pos': 'hand', CAMERAS[1]: 'observation.images.hand'}
    asked = ask(replace(robot, rename_map=names))
    assert asked.state_names[-1] == asked.action_names[-1] == 'hand'
    assert asked.state_names[0] == 'shoulder_pan.pos'
    assert [camera.name for camera in asked.cameras] == [CAMERAS[0], 'observation.images.hand']


@pytest.mark.parametrize(('timeout_s', 'age_s', 'within_s'), [(5.0, 3.0, 3.0), (2.0, 3.0, 2.0)])
def test_an_answer_is_of_use_until_it_is_given_up_or_too_old(robot, timeout_s, age_s, within_s):
    asked = ask(robot, request_timeout_s=timeout_s, max_action_age_s=age_s)
    assert asked.reply_deadline_s == within_s


def test_it_tells_its_limits_under_the_names_of_the_policy(robot):
    wild = replace(robot, rename_map={robot.actions[0].name: 'renamed'})
    asked = ask(wild, interpolation_multiplier=2)
    (extension,) = asked.extensions
    limits = decode_limits(extension.value)
    assert extension.key == 'lerobot_serve.limits'
    assert limits.names == asked.action_names
    assert limits.names[0] == 'renamed'
    # commands, not rows of the policy
    assert limits.step_s == pytest.approx(1 / 60)


def test_a_robot_of_very_many_actions_asks_without_its_limits(robot):
    many = tuple(replace(robot.actions[0], name=f'{"x" * 90}{i}') for i in range(500))
    assert ask(replace(robot, actions=many)).extensions == ()


# when is asked, and how often is commanded


def test_a_row_lasts_a_step_of_the_policy_however_often_the_robot_is_commanded(robot):
    core = EdgeCore(
        EdgeParameters(interpolation_multiplier=4),
        robot,
        Inbox('robot_1', lambda: 0),
        RobotDecisions(),
        listener=EdgeListener(),
        on_change=lambda _: None,
        liveliness_lease_s=2.0,
        resolve_topic=str,
    )
    requester = core.make_requester(FakeTransport(), FakeObservations())
    assert requester.pipeline.merger.step_s == pytest.approx(1 / 30)
    assert requester.settings is core.parameters


@pytest.mark.parametrize(('chunk_size', 'warns'), [(15, True), (16, False)])
def test_chunks_that_are_shorter_than_the_buffer_are_worth_a_warning(robot, chunk_size, warns):
    texts = chunk_rate_warnings(EdgeParameters(request_threshold_s=0.5), robot, chunk_size)
    assert bool(texts) == warns
    assert all('request_threshold_s is 0.5' in text for text in texts)


# what commands the robot


class Made:
    """A controller as it is put together, of a robot that stands at 0 with its interlocks."""

    def __init__(self, robot: RobotDescription, **parameters: object) -> None:
        self.parameters = EdgeParameters(**parameters)
        self.queue, self.dries = ActionQueue(), []
        self.controller = wiring.make_controller(
            self.parameters, robot, RobotDecisions(), self.queue, lambda: self.dries.append(1)
        )
        self.step_ns = int(1e9 * self.parameters.command_period_s(robot.fps))
        self.columns, self.now_ns = len(robot.actions), 0
        self.orders = OperatingConditions()
        # until enough samples agree where it stands
        for _ in range(wiring.START_SAMPLES - 1):
            assert self.step() == (None, False)

    def plan(self, *values: float) -> None:
        rows = np.repeat(np.array(values, np.float32)[:, None], self.columns, 1)
        source = ChunkSource(1, 0, 0, 'e', self.now_ns, 'prod', 'act@0')
        self.queue.append(rows, source, mark=self.queue.mark())

    def step(self):
        self.now_ns += self.step_ns
        stands = np.zeros(self.columns)
        return self.controller.step(self.now_ns, lambda: RobotState(stands, stands), self.orders)

    def rungs(self, seconds: float) -> list[RungKind]:
        """Return the rungs of so much time, each once."""
        steps = round(seconds * 1e9 / self.step_ns)
        kinds = [self.step() and self.controller.rung for _ in range(steps)]
        return list(dict.fromkeys(kinds))

    def commands(self, steps: int) -> list[float]:
        return [self.step()[0].judgement.command[0] for _ in range(steps)]


def test_a_controller_plays_interpolates_and_comes_to_rest(robot):
    made = Made(robot, interpolation_multiplier=2)
    made.plan(0.0, 0.04)
    assert made.commands(3) == pytest.approx([0.0, 0.02, 0.04])
    made.step()
    assert made.controller.rung is RungKind.RAMP
    assert made.dries == [1]


def test_the_bounds_of_a_step_are_those_of_the_robot(robot):
    made = Made(robot)
    made.plan(1.0)
    assert made.commands(1) == pytest.approx([0.15])


def test_no_action_is_played_that_is_older_than_allowed(robot):
    made = Made(robot, request_threshold_s=0.2, max_action_age_s=0.25)
    made.plan(*[0.01] * 20)
    made.now_ns += 240_000_000 - made.step_ns
    assert made.step()[0].planned
    assert made.step()[0].planned is None


def test_the_ladder_is_that_of_the_parameters(robot):
    made = Made(robot, fallback_ladder=('ramp 0.6', 'safe_pose'))
    made.plan(0.0)
    made.step()
    kinds = {made.step() and made.controller.rung for _ in range(60)}
    assert kinds == {RungKind.RAMP, RungKind.SAFE_POSE}


@pytest.mark.parametrize(
    ('resume_threshold_s', 'rows', 'plays'), [(0.1, 2, False), (0.1, 3, True), (0.0, 1, True)]
)
def test_how_much_is_buffered_before_it_plays_again_is_in_rows_of_the_policy(
    robot, resume_threshold_s, rows, plays
):
    made = Made(robot, resume_threshold_s=resume_threshold_s, interpolation_multiplier=2)
    made.plan(0.0)
    made.step()
    made.step()
    made.plan(*[0.0] * rows)
    assert (made.step()[0].planned is not None) == plays


def test_the_cage_latches_after_as_many_trips_as_told(robot):
    made = Made(robot, latch_after_trips=3)
    made.plan(*[1.0] * 5)
    latched = [made.step() and made.controller.latched for _ in range(4)]
    assert latched == [False, False, True, True]


TEARDOWNS = [
    ('hold', [RungKind.HOLD]),
    ('safe_pose', [RungKind.RAMP, RungKind.SAFE_POSE, RungKind.STOP_SERVICE]),
    ('initial_pose', [RungKind.RAMP, RungKind.INITIAL_POSE, RungKind.STOP_SERVICE]),
    ('stop_service', [RungKind.RAMP, RungKind.STOP_SERVICE]),
]


@pytest.mark.parametrize(('teardown', 'kinds'), TEARDOWNS)
def test_what_is_done_with_a_robot_that_is_given_up(robot, teardown, kinds):
    made = Made(robot, teardown=teardown, stop_service='/arm/stop' * (teardown != 'hold'))
    made.plan(0.0, 0.0)
    made.rungs(0.1)
    made.orders = OperatingConditions(state=ConnectionState.DEAD)
    assert made.rungs(60) == kinds


@pytest.mark.parametrize(
    ('while_paused', 'last'), [('hold', RungKind.HOLD), ('no_command', RungKind.NO_COMMAND)]
)
def test_what_is_done_while_paused_and_between_episodes(robot, while_paused, last):
    for orders, end in (
        (OperatingConditions(paused=True), last),
        (OperatingConditions(running=False), RungKind.HOLD),
    ):
        made = Made(robot, while_paused=while_paused)
        made.plan(0.0, 0.1, 0.2)
        made.step(), made.step()
        made.orders = orders
        assert made.rungs(1) == [RungKind.RAMP, end]


def test_a_joint_may_stand_a_share_of_its_range_outside_its_limits(robot):
    for share, begins in ((0.05, False), (0.2, True)):
        made = Made(robot, start_tolerance=share)
        here = np.zeros(made.columns)
        here[0] = 2.1
        made.plan(*[0.0] * 9)
        for _ in range(4):
            made.now_ns += made.step_ns
            executed, _ = made.controller.step(made.now_ns, lambda: RobotState(here, here))  # noqa: B023
        assert (executed is not None) == begins


@pytest.mark.parametrize(
    ('timeout_s', 'max_age_s', 'steps'),
    [(0.4, 0.25, 12), (0.2, 0.25, 7), (0.0, 0.001, 3), (0.2, 1.0, 30)],
    ids=['timeout', 'what the file accepts', 'late ticks', 'a slow topic'],
)
def test_without_a_new_state_nothing_is_commanded_after_a_while(
    robot, timeout_s, max_age_s, steps
):
    state = tuple(replace(source, max_age_s=max_age_s) for source in robot.state)
    made = Made(replace(robot, state=state), state_timeout_s=timeout_s, max_action_age_s=3.0)
    made.plan(*[0.01] * 80)
    made.step()
    sent = 0
    for _ in range(40):
        made.now_ns += made.step_ns
        sent += made.controller.step(made.now_ns, RobotState)[0] is not None
    assert sent == steps
    assert made.controller.silence.startswith('no new state came')


def test_a_robot_without_a_pose_cannot_be_torn_down_to_one(robot):
    with pytest.raises(ParameterError, match='safe_pose'):
        Made(replace(robot, safe_pose=None), teardown='safe_pose')


def test_an_interlock_that_makes_no_sense_is_a_mistake_of_the_file(robot):
    odd = Interlock('door', 'no_such_state', 0.0, None, {'gripper.pos': 0.0})
    with pytest.raises(ParameterError, match='robot_file: interlock door'):
        Made(replace(robot, interlocks=(odd,)))


def test_interlocks_look_at_the_names_of_the_robot_not_of_the_policy(robot):
    lock = Interlock('full', 'gripper.pos', None, -0.1, {'shoulder_pan.pos': 0.0})
    made = Made(replace(robot, interlocks=(lock,), rename_map={'gripper.pos': 'hand'}))
    made.plan(0.1)
    assert made.commands(1) == [0.0]


# inputs


def test_every_input_has_its_topic_type_and_age(robot):
    odometry = StateSource('odom', 'nav_msgs/Odometry', ('linear.x',), '', ('x',), 0.75)
    both = replace(robot, state=(*robot.state, odometry))
    assert state_input_names(both) == ('state from joint_states', 'state from odom')
    assert input_topics(both) == {
        'state from joint_states': ('joint_states', 'sensor_msgs/JointState', 0.25),
        'state from odom': ('odom', 'nav_msgs/Odometry', 0.75),
        CAMERAS[0]: ('camera/front/image_raw', 'sensor_msgs/Image', 0.5),
        CAMERAS[1]: ('camera/wrist/image_raw', 'sensor_msgs/Image', 0.5),
    }
    assert input_max_ages_ns(both)['state from odom'] == 750_000_000


# names


@pytest.mark.parametrize(
    ('client_id', 'namespace', 'name'),
    [('robot_1', '/x', 'robot_1'), ('', '/hall/robot_2', 'hall.robot_2'), ('', '/r', 'r')],
)
def test_a_robot_is_called_by_its_parameter_or_its_namespace(client_id, namespace, name):
    assert resolve_client_id(client_id, namespace) == name


@pytest.mark.parametrize(
    ('client_id', 'namespace', 'text'),
    [('', '/', 'set one of them'), ('ü' * 65, '/r', 'at most 128 bytes')],
)
def test_a_robot_that_cannot_be_called_is_a_mistake(client_id, namespace, text):
    with pytest.raises(ParameterError, match=text):
        resolve_client_id(client_id, namespace)
