# SPDX-License-Identifier: Apache-2.0
"""Inputs that arrive in time and are wrong: stamps from the past, frames that stand still."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.edge.edge_transport_rig import ROBOT

from lerobot_serve.contract.errors import Malformed
from lerobot_serve.edge.inputs.monitor import (
    FrozenCameraDetector,
    InputMonitor,
    is_same_frame,
    MIN_REPEATS,
)
from lerobot_serve.edge.parameters import EdgeParameters

S = 1_000_000_000
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
