# SPDX-License-Identifier: Apache-2.0
"""Inputs: an observation is made of everything, fresh, and what is wrong with one is seen."""

from __future__ import annotations

from dataclasses import replace

import cv2
from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
from support.edge.edge_transport_rig import ROBOT

from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.image_size import downscale
from lerobot_serve.edge.inputs.latest import InputSnapshot, InputsNotReady, LatestInputs
from lerobot_serve.edge.inputs.monitor import (
    FrozenCameraDetector,
    InputMonitor,
    is_same_frame,
    MIN_REPEATS,
)
from lerobot_serve.edge.parameters import EdgeParameters

S = 1_000_000_000
BOUNDS_NS = {'joints': S // 4, 'front': S // 2, 'wrist': S}


def inputs(**arrived_ns: int) -> LatestInputs:
    made = LatestInputs(BOUNDS_NS)
    for name, at_ns in arrived_ns.items():
        made.deposit(name, f'{name} at {at_ns}', at_ns)
    return made


def test_nothing_is_ready_before_everything_has_arrived():
    with pytest.raises(InputsNotReady, match='no message received yet for joints'):
        inputs().snapshot(0)
    with pytest.raises(InputsNotReady, match='no message received yet for wrist'):
        inputs(joints=0, front=0).snapshot(0)
    with pytest.raises(InputsNotReady, match='no message received yet for front'):
        inputs(joints=0).newest('front', 0)


def test_a_snapshot_is_as_old_as_its_oldest_part():
    made = inputs(joints=30, front=10, wrist=20)
    values = {'joints': 'joints at 30', 'front': 'front at 10', 'wrist': 'wrist at 20'}
    assert made.snapshot(30) == InputSnapshot(values, captured_ns=10)


def test_only_the_newest_counts():
    made = inputs(joints=0, front=0, wrist=0)
    made.deposit('front', 'newer', 5)
    assert made.snapshot(6).values['front'] == 'newer'
    assert made.newest('front', 6)[0] == 'newer'


@pytest.mark.parametrize('stale', BOUNDS_NS)
def test_each_input_has_its_own_bound(stale):
    bound_ns = BOUNDS_NS[stale]
    arrived_ns = dict.fromkeys(BOUNDS_NS, 10 * S) | {stale: 10 * S - bound_ns}
    assert inputs(**arrived_ns).snapshot(10 * S).captured_ns == 10 * S - bound_ns
    arrived_ns[stale] -= 1
    with pytest.raises(
        InputsNotReady, match=f'{stale} is .* s old, {bound_ns / S:g} s is allowed'
    ):
        inputs(**arrived_ns).snapshot(10 * S)
    with pytest.raises(InputsNotReady, match=stale):
        inputs(**arrived_ns).newest(stale, 10 * S)


def test_a_stale_camera_does_not_hide_where_the_robot_is():
    made = inputs(joints=10 * S, front=0, wrist=0)
    assert made.newest('joints', 10 * S) == (f'joints at {10 * S}', 10 * S)


def test_what_arrives_while_the_clock_is_read_is_fresh():
    assert inputs(joints=7, front=7, wrist=7).snapshot(6).captured_ns == 7


arrivals = st.lists(st.tuples(st.sampled_from(sorted(BOUNDS_NS)), st.integers(0, S // 3)))


@given(arrivals, st.integers(0, 2 * S))
def test_a_snapshot_never_holds_what_is_too_old(script, pause_ns):
    made, now_ns, last = LatestInputs(BOUNDS_NS), 0, {}
    for name, step_ns in script:
        now_ns += step_ns
        made.deposit(name, now_ns, now_ns)
        last[name] = now_ns
    now_ns += pause_ns
    fresh = all(n in last and now_ns - last[n] <= bound for n, bound in BOUNDS_NS.items())
    try:
        snapshot = made.snapshot(now_ns)
    except InputsNotReady:
        assert not fresh
    else:
        assert fresh
        assert snapshot == InputSnapshot(last, min(last.values()))


def test_what_is_missing_is_named_with_its_topic():
    inputs = LatestInputs({'joints': 1}, {'joints': '/robot_1/joint_states'})
    with pytest.raises(InputsNotReady, match='for joints on /robot_1/joint_states'):
        inputs.snapshot(0)


def picture(height: int, width: int, channels: int, kind: type = np.uint8) -> np.ndarray:
    values = np.random.default_rng(0).integers(0, 255, (height, width, channels))
    return values.astype(kind)


@pytest.mark.parametrize(('channels', 'kind'), [(1, np.uint8), (3, np.uint8), (1, np.uint16)])
def test_a_larger_frame_is_what_the_server_would_make_of_it(channels, kind):
    frame = picture(48, 64, channels, kind)
    small = downscale(frame, 24, 20)
    assert (small.shape, small.dtype) == ((24, 20, channels), frame.dtype)
    expected = cv2.resize(frame, (20, 24), interpolation=cv2.INTER_AREA)
    assert np.array_equal(small, expected.reshape(24, 20, channels))


@pytest.mark.parametrize(
    ('height', 'width'), [(48, 64), (96, 128), (24, 64), (24, 128), (48, 32), (0, 0), (0, 32)]
)
def test_any_other_frame_stays_as_it_is(height, width):
    frame = picture(48, 64, 3)
    assert downscale(frame, height, width) is frame


REST, MOVED = np.zeros(3), np.array([0.0, 0.5, 0.0])


def frame(stamp: int, fill: int = 7) -> bytes:
    return bytes([0, 1, 0, 0]) + stamp.to_bytes(8, 'little') + bytes([fill]) * 100


def test_only_stamps_may_differ():
    assert is_same_frame(frame(1), frame(2))
    assert not is_same_frame(frame(1), frame(1, fill=8))
    assert not is_same_frame(frame(1), frame(1) + b'x')
    assert is_same_frame(b'ab', b'ab')


def frozen_after(
    cameras: FrozenCameraDetector, frames: int, *, state: np.ndarray, **at: object
) -> list:
    """Show so many messages at 10 Hz, and return what is frozen at the last."""
    found: list = []
    for number in range(frames):
        place = state if number else REST
        raw = at.get('raw') or frame(number, fill=number if at.get('changes') else 7)
        found = cameras.poll(number * S // 10, place, {'front': raw})
    return found


def test_one_frame_again_and_again_while_the_robot_moves_is_frozen():
    assert frozen_after(FrozenCameraDetector(2.0), 20, state=MOVED) == []
    assert frozen_after(FrozenCameraDetector(2.0), 21, state=MOVED) == ['front']


@pytest.mark.parametrize(
    ('after_s', 'state', 'more'),
    [
        (2.0, REST, {}),
        (2.0, MOVED, {'changes': True}),
        # one message that is looked at again and again is late, not repeated
        (2.0, MOVED, {'raw': frame(1)}),
        (0.0, MOVED, {}),
    ],
)
def test_what_is_not_frozen(after_s, state, more):
    assert frozen_after(FrozenCameraDetector(after_s), 100, state=state, **more) == []


def test_a_slow_camera_is_not_frozen_before_it_repeated_itself_often_enough():
    cameras = FrozenCameraDetector(2.0)
    for number in range(MIN_REPEATS):
        raw = frame(number)
        assert cameras.poll(10 * number * S, MOVED if number else REST, {'front': raw}) == []
    assert cameras.poll(100 * S, MOVED, {'front': frame(99)}) == ['front']
    assert cameras.poll(101 * S, MOVED, {'front': frame(100, fill=8)}) == []


def watched(*, stops: bool = False, bound_s: float = 0.0) -> tuple[InputMonitor, list[str]]:
    drops: list[str] = []
    cameras = tuple(replace(camera, max_stamp_age_s=bound_s) for camera in ROBOT.cameras)
    robot = replace(ROBOT, cameras=cameras)
    return InputMonitor(
        robot,
        EdgeParameters(on_frozen_camera='stop_observations' if stops else 'warn'),
        stamp_ns=lambda raw, topic: raw,
        now_ns=lambda: 100 * S,
        mono_ns=iter(range(0, 10_000 * S, S)).__next__,
        count_dropped=drops.append,
    ), drops


def test_a_stamp_is_held_to_its_bound_only_where_there_is_one():
    names = [camera.name for camera in ROBOT.cameras]
    free, _ = watched()
    free.check_stamps(dict.fromkeys(names, 0))
    bound, _ = watched(bound_s=0.5)
    bound.check_stamps(dict.fromkeys(names, int(99.6 * S)))
    for stamp, words in ((int(99.4 * S), '0.60 s ago'), (int(100.6 * S), '0.60 s in the future')):
        with pytest.raises(Malformed, match=words) as raised:
            bound.check_stamps(dict.fromkeys(names, stamp))
        assert raised.value.reason == 'old_stamp'


@pytest.mark.parametrize('stops', [False, True])
def test_a_frozen_camera_is_counted_and_loud_and_stops_where_chosen(stops):
    inputs, drops = watched(stops=stops)
    names = [camera.name for camera in ROBOT.cameras]
    raised = 0
    for number in range(10):
        try:
            inputs.check_frames(dict.fromkeys(names, frame(number)), MOVED if number else REST)
        except Malformed as error:
            assert error.reason == 'frozen_camera'
            raised += 1
    assert raised == (5 if stops else 0)
    assert drops == ([] if stops else ['frozen_camera'] * 5)
    assert ROBOT.cameras[0].topic in inputs.text
    inputs.check_frames({n: frame(1, fill=number) for number, n in enumerate(names, 9)}, MOVED)
    assert inputs.text == ''
