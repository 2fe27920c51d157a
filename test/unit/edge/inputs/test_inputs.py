# SPDX-License-Identifier: Apache-2.0
"""Inputs: an observation is made of everything, fresh, and is as old as its oldest part."""

from __future__ import annotations

import cv2
from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from lerobot_serve.contract.image_size import downscale
from lerobot_serve.edge.inputs.latest import InputSnapshot, InputsNotReady, LatestInputs

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
