# SPDX-License-Identifier: Apache-2.0
"""The cameras of the simulated robot: RGB, the right way up, and true to the scene."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
from support.sim_places import places, poses

from lerobot_serve.sim import cameras
from lerobot_serve.sim.arm import Arm, ELBOW, hand_xy, HOME_RAD
from lerobot_serve.sim.scene import ReachScene


def red(image):
    return (image[..., 0] > 180) & (image[..., 1] < 80) & (image[..., 2] < 80)


@given(poses, places, st.sampled_from([(224, 224), (120, 160), (480, 640), (97, 64)]))
@settings(max_examples=50, deadline=None)
def test_the_target_is_red_where_the_camera_sees_it(pose, place, shape):
    for name in cameras.NAMES:
        image = cameras.render(name, *shape, pose, place)
        assert image.shape == (*shape, 3)
        assert image.dtype == np.uint8
        column, row = (round(value) for value in cameras.view(name, *shape, pose).pixel(place))
        if name == 'front' or (0 <= row < shape[0] and 0 <= column < shape[1]):
            assert tuple(image[row, column]) == (255, 0, 0)
            rows, columns = np.nonzero(red(image))
            reach = 1 + cameras.TARGET_RADIUS_M / cameras.SPAN_M[name] * min(shape)
            assert np.hypot(rows - row, columns - column).max() <= reach + 1


def test_the_forearm_is_blue_and_the_floor_is_not():
    pose, place = (0.0, 0, 0, 0, 0, 0), (0.2, 0.2)
    image = cameras.render('front', 224, 224, pose, place)
    column, row = cameras.view('front', 224, 224, pose).pixel((0.29, 0))
    forearm = image[round(row), round(column)].astype(int)
    assert forearm[2] > forearm[0] + 50
    corner = image[:20, :20].reshape(-1, 3)
    assert np.abs(corner.mean(0) - cameras.FLOOR_RGB).max() < 15
    assert 0 < corner.std(0).max() < 15


def test_up_is_ahead_and_left_is_left():
    straight = (0.0,) * 6
    for name, ahead_xy, left_xy in (
        ('front', (0.30, 0), (0.08, 0.2)),
        ('wrist', (0.45, 0), (0.38, 0.05)),
    ):
        looks = cameras.view(name, 100, 100, straight)
        column, row = looks.pixel(ahead_xy)
        assert column == pytest.approx(49.5)
        assert row < 40
        column, row = looks.pixel(left_xy)
        assert column < 40
        assert row == pytest.approx(49.5)


@given(poses)
def test_the_wrist_camera_turns_with_the_forearm(pose):
    looks = cameras.view('wrist', 100, 100, pose)
    assert looks.pixel(hand_xy(pose)) == pytest.approx((49.5, 49.5))
    heading_rad = pose[0] + pose[ELBOW]
    x_m, y_m = hand_xy(pose)
    ahead = looks.pixel((x_m + 0.05 * math.cos(heading_rad), y_m + 0.05 * math.sin(heading_rad)))
    assert ahead == pytest.approx((49.5, 49.5 - 0.05 * 100 / 0.24))


def test_a_picture_does_not_depend_on_the_one_before():
    scene = ReachScene(Arm(), np.random.default_rng(4))
    first = scene.render('front', 64, 64)
    cameras.render('front', 64, 64, (1.0,) * 6, (0.2, 0))[:] = 0
    assert (scene.render('front', 64, 64) == first).all()


def test_an_unknown_camera_is_an_error():
    with pytest.raises(ValueError, match="camera must be one of front, wrist, got 'top'"):
        cameras.render('top', 64, 64, HOME_RAD, (0.2, 0))
    with pytest.raises(ValueError, match='at least 1, got 0 x 64'):
        cameras.render('front', 0, 64, HOME_RAD, (0.2, 0))


@given(poses)
def test_a_wrist_camera_that_was_moved_sees_the_hand_behind_its_middle(pose):
    looks = cameras.view('wrist', 100, 100, pose, 0.05)
    assert looks.pixel(hand_xy(pose)) == pytest.approx((49.5, 49.5 + 0.05 * 100 / 0.24))
    assert cameras.view('front', 100, 100, pose, 0.05) == cameras.view('front', 100, 100, pose)
