# SPDX-License-Identifier: Apache-2.0
"""Messages become entities with values and times; what cannot be shown is counted."""

from __future__ import annotations

from collections.abc import Iterable
from math import isnan

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
from support.replacing import replace
from support.tools.rerun_rig import BEGIN_NS, CLOCK_AHEAD_NS, JOINTS, ROBOT, Scene, STEP_NS

from lerobot_serve.contract import image_codec
from lerobot_serve.contract.data_path.message_parts import Image
from lerobot_serve.contract.schema import Codec, Flag, Status
from lerobot_serve.errors import UserError
from lerobot_serve.tools.bags.message import BagMessage, OBSERVATION
from lerobot_serve.tools.rerun_view import joint_values, message_mapping, robot_mapping
from lerobot_serve.tools.rerun_view.entries import (
    Entry,
    Frame,
    Level,
    LogLine,
    path_part,
    Scalar,
    State,
)
from lerobot_serve.tools.rerun_view.message_mapping import MessageMapping

AT = ('robots', ROBOT)
PIXELS = np.arange(8 * 10 * 3, dtype=np.uint8).reshape(8, 10, 3)


def mapped(scene: Scene, mapping: MessageMapping | None = None) -> list[Entry]:
    mapping = mapping or MessageMapping()
    entries = [entry for message in scene.messages for entry in mapping.add(message)]
    return [*entries, *mapping.finish()]


def values(entries: Iterable[Entry], *path: str, root: tuple[str, ...] = AT) -> list[object]:
    """Return the values of an entity of the robot, in order."""
    found = [each.value for each in entries if each.path == (*root, *path)]
    return [each.value if isinstance(each, (Scalar, State)) else each for each in found]


def events(entries: Iterable[Entry], root: tuple[str, ...] = AT) -> list[str]:
    return [each.text for each in values(entries, 'events', root=root)]


def frame(name: str = 'front', codec: Codec = Codec.JPEG, **changes: object) -> Image:
    return replace(image_codec.encode(name, PIXELS, codec), **changes)


def test_a_command_is_what_was_wanted_and_what_was_sent_by_joint():
    scene = Scene()
    scene.session()
    scene.execute([0.5, 1.5], [0.25, 1.5])
    entries = mapped(scene)
    for joint, wanted, commanded in zip(JOINTS, (0.5, 1.5), (0.25, 1.5), strict=True):
        assert values(entries, 'joints', joint, 'wanted') == [wanted]
        assert values(entries, 'joints', joint, 'commanded') == [commanded]
    assert values(entries, 'queue', 'action_age_s') == [0.25]


def test_a_command_is_on_three_timelines_and_its_stamp_on_that_of_its_machine_only():
    scene = Scene()
    scene.session()
    scene.execute([0.5, 1.5])
    (entry,) = [e for e in mapped(scene) if e.path == (*AT, 'joints', JOINTS[0], 'wanted')]
    times = entry.times
    assert (times.time_ns, times.control_step) == (BEGIN_NS + 2 * STEP_NS, 1)
    assert times.clock == f'clock of {ROBOT}'
    assert times.stamp_ns == times.time_ns + CLOCK_AHEAD_NS


def test_requests_have_the_control_step_of_the_command_before_and_no_stamp():
    scene = Scene()
    scene.session()
    scene.observe(1, [1.0, 2.0])
    scene.execute([0.5, 1.5])
    scene.observe(2, [3.0, 4.0])
    path = (*AT, 'joints', JOINTS[1], 'measured')
    found = [e for e in mapped(scene) if e.path == path]
    assert [e.value.value for e in found] == [2.0, 4.0]
    assert [e.times.control_step for e in found] == [None, 1]
    assert {e.times.clock for e in found} == {''}


def test_values_wait_for_the_names_of_their_joints():
    scene = Scene()
    scene.execute([0.5, 1.5])
    scene.observe(1, [1.0, 2.0])
    mapping = MessageMapping()
    for message in scene.messages:
        assert not [e for e in mapping.add(message) if 'joints' in e.path]
    late = mapping.add(scene.session())
    assert values(late, 'joints', JOINTS[1], 'wanted') == [1.5]
    assert values(late, 'joints', JOINTS[1], 'measured') == [2.0]
    # their times are those of their messages
    assert {e.times.time_ns for e in late} == {BEGIN_NS + STEP_NS, BEGIN_NS + 2 * STEP_NS}


def test_without_names_values_are_numbered_at_the_end_or_when_many_wait(monkeypatch):
    scene = Scene()
    scene.execute([0.5, 1.5])
    entries = mapped(scene)
    assert values(entries, 'joints', 'action_1', 'commanded') == [1.5]
    monkeypatch.setattr(joint_values, 'WAITING_LIMIT', 4)
    mapping = MessageMapping()
    for _ in range(3):
        scene.execute([0.5, 1.5])
    # two rows a command
    shown = [values(mapping.add(m), 'joints', 'action_0', 'wanted') for m in scene.messages[1:]]
    assert shown == [[], [0.5, 0.5], [0.5]]


def test_names_that_do_not_fit_the_values_are_not_used():
    scene = Scene()
    scene.session()
    scene.execute([1.0, 2.0, 3.0])
    entries = mapped(scene)
    assert values(entries, 'joints', 'action_2', 'wanted') == [3.0]
    assert not values(entries, 'joints', JOINTS[0], 'wanted')


def test_a_chunk_is_a_plan_from_its_first_executed_row():
    scene = Scene()
    scene.session()
    scene.observe(5, [0.0, 0.0])
    scene.reply(5, [[1, 2], [3, 4], [5, 6]])
    scene.execute([3.0, 4.0], seq=5, row=1)
    scene.execute([5.0, 6.0], seq=5, row=2)
    entries = mapped(scene)
    begin_ns = scene.now_ns - STEP_NS
    found = [e for e in entries if e.path == (*AT, 'joints', JOINTS[1], 'plan', '0')]
    *planned, end = [e.value.value for e in found]
    assert planned == [4.0, 6.0]
    assert isnan(end)
    # a row each 1 / fps
    assert [e.times.time_ns - begin_ns for e in found] == [0, STEP_NS, 2 * STEP_NS]
    assert {e.times.control_step for e in found} == {None}


def test_plans_that_overlap_have_lanes_and_too_many_are_counted():
    scene, mapping = Scene(), MessageMapping()
    scene.session()
    for seq in range(1, 7):
        scene.observe(seq, [0.0, 0.0])
        scene.reply(seq, np.zeros((60, 2)))
        scene.execute([0.0, 0.0], seq=seq)
    entries = mapped(scene, mapping)
    lanes = {e.path[5] for e in entries if e.path[4:5] == ('plan',)}
    assert lanes == {'0', '1', '2', '3'}
    assert mapping.not_shown['plans that overlap 4 others'] == 2


def test_a_plan_without_a_rate_is_counted():
    scene, mapping = Scene(), MessageMapping()
    scene.observe(5, [0.0, 0.0])
    scene.reply(5, [[1, 2]])
    scene.execute([1.0, 2.0], seq=5)
    mapped(scene, mapping)
    assert mapping.not_shown['plans without a control rate'] == 1


def test_states_are_their_changes():
    scene = Scene()
    scene.session()
    for cage in ('pass', 'pass', 'clamped', 'clamped', 'pass'):
        scene.execute([0.0, 0.0], cage=cage)
    scene.execute([0.0, 0.0], rung='ramp', policy='', slot='', reason='ramp: queue empty')
    scene.execute([0.0, 0.0], policy='reach@2', slot='b')
    entries = mapped(scene)
    assert values(entries, 'states', 'cage') == ['pass', 'clamped', 'pass']
    assert values(entries, 'states', 'ladder') == ['policy', 'ramp', 'policy']
    # a rung has no policy; the policy that drove last stays
    assert values(entries, 'states', 'policy') == ['reach@1', 'reach@2']
    assert values(entries, 'states', 'slot') == ['prod', 'b']
    assert 'ladder: ramp: queue empty' in events(entries)
    assert 'policy reach@2 in slot b' in events(entries)


def test_a_chattering_cage_fills_the_state_and_not_the_log():
    scene, mapping = Scene(), MessageMapping()
    for number in range(40):
        scene.execute([0.0], cage='clamped' if number % 2 else 'pass', reason='elbow')
    entries = mapped(scene, mapping)
    assert len(values(entries, 'states', 'cage')) == 40
    shown = [text for text in events(entries) if text.startswith('cage')]
    # four seconds
    assert len(shown) == 4
    assert sum(n for what, n in mapping.not_shown.items() if 'cage events' in what) == 36


def test_the_edge_says_what_the_ladder_does_while_no_command_comes():
    scene = Scene()
    scene.execute([0.0])
    scene.state(rung='hold')
    for _ in range(6):
        scene.state('dead', rung='no_command', reason='gave up')
    entries = mapped(scene)
    assert values(entries, 'states', 'ladder') == ['policy', 'no_command']
    assert values(entries, 'states', 'connection') == ['streaming', 'dead']
    (dead,) = [e for e in values(entries, 'events') if e.text == 'connection: dead: gave up']
    assert dead.level == Level.ERROR


def test_drops_and_stalls_are_what_was_added():
    scene = Scene()
    scene.state(dropped={'late_chunk': 5}, stalls=1)
    scene.state(dropped={'late_chunk': 7, 'stale_action': 1}, stalls=2)
    scene.state(dropped={'late_chunk': 7, 'stale_action': 1}, stalls=2)
    found = [text for text in events(mapped(scene)) if 'dropped' in text]
    assert found == ['dropped: 2 late_chunk, 1 stale_action, 1 stalls']


def test_the_queue_and_the_round_trip_are_those_of_the_edge():
    scene = Scene()
    scene.state()
    scene.observe(1, [0.0])
    scene.reply(1, [[0.0]])
    entries = mapped(scene)
    assert values(entries, 'queue', 'remaining_s') == [0.5]
    assert values(entries, 'queue', 'at_request_s') == [0.75]
    assert values(entries, 'request', 'round_trip_ms') == [20.0]
    assert values(entries, 'request', 'inference_ms') == [12.5]
    assert not values(entries, 'request', 'from_request_to_reply_ms')


def test_without_the_state_of_the_edge_the_recorder_times_a_request():
    scene = Scene()
    scene.observe(1, [0.0])
    scene.reply(1, [[0.0]])
    entries = mapped(scene)
    assert values(entries, 'request', 'from_request_to_reply_ms') == [STEP_NS / 1e6]
    assert values(entries, 'states', 'policy') == ['reach@1']


def test_a_reply_that_is_no_chunk_is_an_event():
    scene = Scene()
    scene.reply(3, status=Status.TOO_LATE, status_text='40 ms late', policy='')
    scene.reply(4, status=77, policy='')
    found = events(mapped(scene))
    assert found[:2] == ['request 3: too_late: 40 ms late', 'request 4: unknown (77)']


def test_flags_of_a_reply_are_events():
    scene = Scene()
    message = scene.reply(3, [[1.0]])
    data = bytearray(message.data)
    # the last byte of the header
    data[31] = Flag.POLICY_CHANGED | Flag.STATE_LOST
    entries = MessageMapping().add(message._replace(data=bytes(data)))
    assert 'another policy replies; the prefix is dropped' in events(entries)
    assert 'the server had lost the hidden state of this session' in events(entries)


@pytest.mark.parametrize('codec', [Codec.JPEG, Codec.RAW])
def test_frames_are_what_the_policy_saw(codec):
    scene = Scene()
    scene.observe(1, [0.0], (frame(codec=codec), frame('wrist', codec)))
    found = [e for e in mapped(scene) if e.path[2] == 'cameras']
    assert [e.path[3] for e in found] == ['front', 'wrist']
    assert isinstance(found[0].value, Frame)
    assert bytes(found[0].value.image.data) == bytes(frame(codec=codec).data)


@pytest.mark.parametrize(
    ('image', 'what'),
    [
        (frame(steps_back=1), 'earlier frames of histories'),
        (frame(data=b'no jpeg'), 'unreadable frames'),
        (frame(height=9), 'unreadable frames'),
        (replace(frame(), codec=9), 'unreadable frames'),
        (frame(codec=Codec.RAW, data=b'short'), 'unreadable frames'),
    ],
)
def test_a_frame_that_cannot_be_shown_is_counted(image, what):
    scene, mapping = Scene(), MessageMapping()
    scene.observe(1, [0.0], (image, frame('wrist')))
    found = [e.path[3] for e in mapped(scene, mapping) if e.path[2] == 'cameras']
    assert found == ['wrist']
    assert mapping.not_shown == {what: 1}


def test_cameras_and_joints_are_bounded(monkeypatch):
    monkeypatch.setattr(robot_mapping, 'CAMERAS_LIMIT', 2)
    monkeypatch.setattr(joint_values, 'JOINTS_LIMIT', 3)
    scene, mapping = Scene(), MessageMapping()
    scene.session(tuple('abcde'))
    scene.observe(1, [1.0] * 5, tuple(frame(f'camera {i}') for i in range(3)))
    mapped(scene, mapping)
    robot = mapping.layout.robots[ROBOT]
    assert (robot.cameras, robot.joints) == (['camera 0', 'camera 1'], ['a', 'b', 'c'])
    assert mapping.not_shown == {
        'frames of cameras beyond the first 2': 1,
        'values beyond the first 3': 2,
    }


def test_a_placement_names_the_version_of_a_shared_split():
    scene = Scene()
    scene.session()
    scene.decide('a')
    scene.decide('b', moved=True, split_version=12)
    assert events(mapped(scene))[-2:] == [
        'episode ep placed in slot a (reach@1)',
        'episode ep moved to slot b (reach@1), version 12 of the split',
    ]


def test_behind_a_router_each_request_reply_and_outcome_is_shown_once():
    scene, mapping = Scene(), MessageMapping()
    scene.session()
    for server in ('/policy_router', '/a/policy_server'):
        scene.observe(1, [1.0, 2.0], server=server)
    scene.reply(1, [[0.0, 0.0]], topic='/policy_router/replies/a')
    scene.reply(1, [[0.0, 0.0]])
    for topic in ('', '/policy_router/outcome'):
        scene.outcome('ep', 'success', topic)
    entries = mapped(scene, mapping)
    assert values(entries, 'joints', JOINTS[0], 'measured') == [1.0]
    assert values(entries, 'request', 'inference_ms') == [12.5]
    assert [text for text in events(entries) if 'success' in text] == [
        'episode ep: success after 1.5 s'
    ]
    assert mapping.not_shown == {
        'copies of requests, behind a router': 1,
        'copies of outcomes, at the router': 1,
        'replies to a router': 1,
    }


def test_routers_and_rollouts_have_states_of_their_own():
    scene = Scene()
    scene.router({'a': ('old@1', 'healthy', 75), 'b': ('new@2', 'healthy', 25)})
    scene.router({'a': ('old@1', 'healthy', 75), 'b': ('new@2', 'barred', 0)}, 'slot_b_drained')
    scene.canary('running')
    scene.canary('rolled_back', 'it is worse')
    entries = mapped(scene)
    root = ('nodes', 'policy_router')
    assert values(entries, 'states', 'slot_b', root=root) == ['healthy', 'barred']
    assert values(entries, 'states', 'slot_b_policy', root=root) == ['new@2']
    assert values(entries, 'share_percent', 'slot_b', root=root) == [25, 0]
    assert values(entries, 'states', 'router', root=root) == ['healthy', 'slot_b_drained']
    assert values(entries, 'states', 'rollout', root=root) == ['running', 'rolled_back']
    assert values(entries, 'evidence', 'worse_log10', root=root) == [0.5, 0.5]
    assert 'rollout rolled_back: it is worse' in events(entries, root)
    clocks = {e.times.clock for e in entries if not isinstance(e.value, LogLine)}
    assert clocks == {'clock of policy_router'}


def test_one_robot_of_several_and_the_nodes():
    scene, other = Scene(), Scene('robot_8')
    scene.execute([1.0])
    other.execute([1.0])
    scene.messages += [*other.messages, scene.canary('running')]
    mapping = MessageMapping(ROBOT)
    roots = {e.path[:2] for e in mapped(scene, mapping)}
    assert roots == {AT, ('nodes', 'policy_router')}
    assert (mapping.has_robot, mapping.names) == (True, {ROBOT, 'robot_8'})
    # what was not asked for is not a loss
    assert not mapping.not_shown
    assert {e.path[1] for e in mapped(scene)} == {ROBOT, 'robot_8', 'policy_router'}


@pytest.mark.parametrize('given', ['robot_7', '/robot_7/edge_controller', '/robot_7'])
def test_a_robot_has_the_names_that_other_verbs_take(given):
    scene = Scene()
    scene.execute([1.0])
    assert mapped(scene, MessageMapping(given))


def test_a_wrong_name_is_answered_with_the_nearest():
    scene = Scene()
    scene.execute([1.0])
    mapping = MessageMapping('robot_77')
    assert not mapped(scene, mapping)
    with pytest.raises(UserError, match=r"'robot_77'; did you mean robot_7\? found: robot_7$"):
        mapping.check_robot()
    with pytest.raises(UserError, match='found: none'):
        MessageMapping('robot_77').check_robot()


def test_robots_are_bounded(monkeypatch):
    monkeypatch.setattr(message_mapping, 'ROBOTS_LIMIT', 2)
    mapping = MessageMapping()
    for number in range(4):
        scene = Scene(f'robot_{number}')
        scene.execute([1.0])
        mapped(scene, mapping)
    assert len(mapping.layout.robots) == 2
    assert mapping.not_shown == {'messages of robots beyond the first 2': 2}


def test_damage_and_other_types_are_counted():
    scene, mapping = Scene(), MessageMapping()
    scene.execute([1.0])
    scene.observe(1, [1.0])
    scene.messages = [m._replace(data=m.data[: len(m.data) // 2]) for m in scene.messages]
    scene.messages.append(BagMessage('/joint_states', 'sensor_msgs/msg/JointState', 1, b''))
    scene.messages.append(BagMessage('/x/observation', OBSERVATION, 1, b''))
    assert not mapped(scene, mapping)
    kinds = ('ExecutedAction', 'Observation')
    expected = {
        f'unreadable messages of type lerobot_serve_interfaces/msg/{k}': n
        for k, n in zip(kinds, (1, 2), strict=True)
    }
    assert mapping.not_shown == {**expected, 'messages of type sensor_msgs/msg/JointState': 1}


def test_impossible_numbers_are_counted():
    scene, mapping = Scene(), MessageMapping()
    scene.session(fps=1e-30)
    scene.observe(5, [0.0, 0.0])
    scene.reply(5, [[1, 2]])
    scene.execute([1.0, 2.0], seq=5)
    scene.control_step = (1 << 64) - 2
    scene.execute([3.0, 4.0])
    late = scene.state()
    scene.messages[-1] = late._replace(stamp_ns=(1 << 64) - 1)
    entries = mapped(scene, mapping)
    assert values(entries, 'joints', JOINTS[0], 'wanted') == [1.0]
    assert mapping.not_shown == {
        'plans without a control rate': 1,
        'unreadable messages of type lerobot_serve_interfaces/msg/ExecutedAction': 1,
        'messages of an impossible time': 1,
    }


def test_changed_names_never_collide():
    names = ['', '_', '__', '__x', 'x', 'a\nb', 'a\tb', 'a?b', '../x', 'a/b', ' ', 'ü', '\u202e']
    parts = [path_part(name) for name in names]
    assert len({*parts}) == len(names)
    assert all(part.isprintable() and part and not part.startswith('__') for part in parts)


def test_events_have_no_clock_of_a_machine():
    scene = Scene()
    scene.state()
    scene.execute([0.0])
    scene.outcome('ep', 'success')
    found = [e for e in mapped(scene) if e.path[-1] == 'events']
    assert len(found) >= 3
    assert {e.times.clock for e in found} == {''}


def test_events_have_levels():
    assert LogLine('x').level is Level.INFO
    scene = Scene()
    scene.execute([0.0], cage='stopped', reason='NaN')
    (event,) = [e for e in values(mapped(scene), 'events') if e.text.startswith('cage')]
    assert event == LogLine('cage: stopped: NaN', Level.ERROR)


@settings(max_examples=75, deadline=None)
@given(st.data())
def test_damaged_bytes_are_counted_and_nothing_is_raised(data):
    scene = Scene()
    scene.session()
    scene.state()
    scene.observe(1, [0.0, 0.0], (frame(), frame('raw', Codec.RAW)))
    scene.reply(1, [[1, 2], [3, 4]])
    scene.execute([1.0, 2.0], seq=1)
    scene.canary('running')
    scene.router({'a': ('old@1', 'healthy', 75)})
    scene.outcome('ep', 'success')
    mapping = MessageMapping()
    for message in scene.messages:
        raw = bytearray(message.data)
        for at in data.draw(st.lists(st.integers(0, len(raw) - 1), max_size=3)):
            raw[at] = data.draw(st.integers(0, 255))
        cut = data.draw(st.sampled_from([len(raw), len(raw), len(raw) // 2]))
        for entry in mapping.add(message._replace(data=bytes(raw[:cut]))):
            step = entry.times.control_step
            assert step is None or 0 <= step < 1 << 63
            assert all(part.isprintable() for part in entry.path)
    mapping.finish()
