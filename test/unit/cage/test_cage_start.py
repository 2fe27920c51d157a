# SPDX-License-Identifier: Apache-2.0
"""Where a robot is taken to stand before its first command, and that a misread place is none."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
from support.edge.cage_rig import STEP_S

from lerobot_serve.cage.description import ActionLimit, Motion
from lerobot_serve.cage.limits import MotionLimits
from lerobot_serve.cage.start_position import StartPosition

ARM = (
    ActionLimit('pan.pos', 'pan', Motion.POSITION, -1.8, 1.8, 0.06, max_lead=0.5),
    ActionLimit('roll.pos', 'roll', Motion.POSITION, -inf, inf, 0.06),
)
WHEEL = ActionLimit('drive', 'drive', Motion.VELOCITY, -1.0, 1.0, 0.1)


def start(*actions: ActionLimit, samples: int = 3, tolerance_share: float = 0.05) -> StartPosition:
    return StartPosition(
        MotionLimits(actions or ARM, STEP_S), samples=samples, tolerance_share=tolerance_share
    )


def after(*places: list[float] | None, **more: float) -> StartPosition:
    made = start(**more)
    for place in places:
        made.add_sample(None if place is None else np.array(place))
    return made


HERE, AWAY = [0.5, 9.0], [6.28, 9.0]


@pytest.mark.parametrize(
    ('places', 'missing'),
    [
        ([], 3),
        ([HERE], 2),
        ([HERE, HERE], 1),
        ([HERE, HERE, HERE], 0),
        # one misread sample, first, between and last
        ([AWAY, HERE, HERE], 1),
        ([AWAY, HERE, HERE, HERE], 0),
        ([HERE, HERE, AWAY, HERE], 2),
        ([HERE, HERE, HERE, AWAY], 3),
        ([HERE, HERE, HERE, None], 3),
        ([HERE, HERE, HERE, [np.nan, 9.0]], 3),
        # as far as noise and a hand may move it between two samples
        ([[0.5, 9.0], [0.57, 9.0], [0.5, 9.0]], 0),
        ([[0.5, 9.0], [0.58, 9.0], [0.5, 9.0]], 2),
    ],
)
def test_several_samples_have_to_agree(places, missing):
    made = after(*places)
    needed = 0
    while made.blocked_reason():
        assert made.start_command() is None
        made.add_sample(np.array(HERE))
        needed += 1
    assert made.start_command().position.tolist() == HERE
    assert needed == missing


NOT_YET = 'waiting for 3 consistent samples'


@pytest.mark.parametrize(
    ('places', 'why'),
    [
        ([], 'position unknown: no measured state'),
        ([HERE, None], 'position unknown: no measured state'),
        ([HERE], NOT_YET),
        ([HERE, HERE], NOT_YET),
        ([HERE, AWAY], f'{NOT_YET}; pan.pos changed by more than 0.072'),
        # the same reason step after step, which is what gets into the log
        ([HERE, AWAY, AWAY], f'{NOT_YET}; pan.pos changed by more than 0.072'),
    ],
)
def test_it_says_what_keeps_it_from_a_start(places, why):
    assert after(*places).blocked_reason() == why


def test_it_begins_at_the_newest_sample_and_at_rest():
    last = after([0.5, 9.0], [0.51, 9.0], [0.52, 9.01]).start_command()
    assert last.position.tolist() == [0.52, 9.01]
    assert not last.velocity.any()


@pytest.mark.parametrize(('place', 'begins'), [(1.97, True), (1.99, False), (-1.97, True)])
def test_a_little_outside_its_limits_it_may_stand(place, begins):
    made = after(*[[place, 0.0]] * 3)
    assert (made.blocked_reason() == '') == begins


def test_a_sensor_that_misreads_all_the_time_says_what_to_do():
    why = after(*[AWAY] * 9).blocked_reason()
    assert why.startswith('pan.pos is measured at 6.28, its limits are -1.8 to 1.8')
    assert 'start_tolerance' in why
    assert after(*[AWAY] * 9, tolerance_share=10.0).blocked_reason() == ''


def test_velocities_begin_at_rest_whatever_is_measured():
    made = start(WHEEL)
    assert made.blocked_reason() == ''
    assert made.start_command().position.tolist() == [0.0]


@pytest.mark.parametrize(('samples', 'share'), [(0, 0.1), (3, -0.1), (3, np.nan)])
def test_what_makes_no_sense_is_refused(samples, share):
    with pytest.raises(ValueError, match='samples must be'):
        start(samples=samples, tolerance_share=share)
