# SPDX-License-Identifier: Apache-2.0
"""What a view has, which topics a live view takes, and how points are gathered."""

from __future__ import annotations

import pytest
from support.tools.rerun_rig import Scene

from lerobot_serve.tools.bags.message import CHUNK, EDGE_STATE, EXECUTED, OBSERVATION, OPEN_SESSION
from lerobot_serve.tools.rerun_view.entries import GROUP_LIMIT, joint_groups, Times, ViewLayout
from lerobot_serve.tools.rerun_view.joint_values import LANES, PlanLanes
from lerobot_serve.tools.rerun_view.message_mapping import MessageMapping
from lerobot_serve.tools.rerun_view.message_view import LiveTopics
from lerobot_serve.tools.rerun_view.rerun_sink import CurveBatches, CurveKey, POINTS_LIMIT


def test_joints_are_grouped_by_side_and_number():
    arm = ['shoulder_pan.pos', 'gripper.pos']
    both = [f'{side}_{joint}' for side in ('left', 'right') for joint in arm]
    assert joint_groups(arm) == {'joints': arm}
    assert joint_groups([*both, 'lift']) == {
        'left': both[:2],
        'right': both[2:],
        'joints': ['lift'],
    }
    # no side
    assert joint_groups(['lefty', 'righteous']) == {'joints': ['lefty', 'righteous']}
    many = [f'j{i}' for i in range(GROUP_LIMIT + 1)]
    assert joint_groups(many) == {'joints 1': many[:-1], 'joints 2': many[-1:]}
    assert joint_groups([]) == {}


def test_a_layout_changes_with_new_parts_only():
    layout = ViewLayout()
    for path, version in (
        (('robots', 'r', 'queue', 'x'), 1),
        (('robots', 'r', 'states', 'y'), 1),
        (('robots', 'r', 'joints', 'j', 'wanted'), 2),
        (('robots', 'r', 'joints', 'j', 'plan', '0'), 2),
        (('robots', 'r', 'cameras', 'c'), 3),
        (('nodes', 'n', 'load'), 4),
        (('nodes', 'n', 'states', 'x'), 4),
    ):
        layout.add(path)
        assert layout.version == version, path
    assert (layout.robots['r'].cameras, layout.robots['r'].joints) == (['c'], ['j'])
    assert layout.nodes == ['n']


def test_lanes_are_free_when_their_plan_has_ended():
    lanes = PlanLanes()
    assert [lanes.take(10, 20) for _ in range(LANES + 1)] == [0, 1, 2, 3, None]
    # at its last instant a plan still has its end
    assert lanes.take(20, 30) is None
    assert [lanes.take(21, 30), lanes.take(21, 25)] == [0, 1]


def test_points_are_gathered_by_curve_and_timelines():
    batches = CurveBatches()
    a, b = ('robots', 'r', 'a'), ('robots', 'r', 'b')
    batches.add(a, 1.0, Times(1, 'clock', 10, 3))
    batches.add(b, 2.0, Times(2))
    batches.add(a, 3.0, Times(3, 'clock', 30, 4))
    batches.add(a, 4.0, Times(4, 'clock', 40))
    found = dict(batches.take())
    assert set(found) == {
        CurveKey(a, 'clock', True),
        CurveKey(a, 'clock', False),
        CurveKey(b, '', False),
    }
    both = [(1.0, Times(1, 'clock', 10, 3)), (3.0, Times(3, 'clock', 30, 4))]
    assert found[CurveKey(a, 'clock', True)] == both
    assert not dict(batches.take())
    for _ in range(POINTS_LIMIT):
        assert not batches.is_full
        batches.add(a, 1.0, Times(1))
    assert batches.is_full


EDGE = '/robot_7/edge_controller'


@pytest.mark.parametrize(
    ('topic', 'kind', 'before', 'after', 'all_robots'),
    [
        (f'{EDGE}/state', EDGE_STATE, True, True, True),
        ('/policy_router/open_session/_service_event', OPEN_SESSION, True, True, True),
        (f'{EDGE}/executed_action', EXECUTED, False, True, True),
        ('/robot_8/edge_controller/executed_action', EXECUTED, False, False, True),
        (f'{EDGE}/action_chunk', CHUNK, False, True, True),
        ('/robot_7/action_chunk', CHUNK, False, True, True),
        ('/robot_8/edge_controller/action_chunk', CHUNK, False, False, True),
        ('/policy_server/observation', OBSERVATION, False, True, True),
        ('/other/policy_server/observation', OBSERVATION, False, False, True),
        ('/policy_server/no_session', CHUNK, False, True, True),
        ('/other/policy_server/no_session', CHUNK, False, False, True),
        ('/policy_router/replies/a', CHUNK, False, False, False),
        ('/diagnostics', 'diagnostic_msgs/msg/DiagnosticArray', False, False, False),
    ],
)
def test_a_live_view_takes_its_robot_and_the_server_that_it_uses(
    topic, kind, before, after, all_robots
):
    topics = LiveTopics(MessageMapping('robot_7'))
    assert topics.takes(topic, kind) == before
    other = Scene('robot_8')
    topics.learn(other.state())
    topics.learn(other.execute([1.0]))
    assert topics.takes(topic, kind) == before
    state = Scene().state()
    topics.learn(state._replace(data=state.data[:9]))
    assert topics.takes(topic, kind) == before
    topics.learn(state)
    assert topics.takes(topic, kind) == after
    assert LiveTopics(MessageMapping()).takes(topic, kind) == all_robots
