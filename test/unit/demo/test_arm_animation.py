# SPDX-License-Identifier: Apache-2.0
"""The animation of the arms shows the recorded states, and nothing else."""

from __future__ import annotations

import math
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
from support.tools.operator_states import robot_of

from lerobot_serve.demo.results.arm_animation import (
    arm_animation,
    episodes,
    hand_place,
    HEADER_HEIGHT,
    PANEL_HEIGHT,
    PANEL_WIDTH,
    place,
)
from lerobot_serve.demo.results.scoreboard import (
    ArmClip,
    ArmFrame,
    CLIP_S,
    EndedEpisode,
    FRAMES_HZ,
    GAP_S,
    RECORDED_S,
    Scoreboard,
)
from lerobot_serve.sim.arm import hand_xy

SVG = '{http://www.w3.org/2000/svg}'
MOST_BYTES = 300_000


def recorded(count: int, *, period_s: float = 0.1, targets: int = 3) -> ArmClip:
    clip = ArmClip()
    for number in range(count):
        target = 0.2, 0.05 * (number * targets // count)
        clip.add(ArmFrame(50 + number * period_s, 0.01 * number, 1.0 - 0.02 * number, target))
    return clip


def animations(panel: ElementTree.Element, name: str) -> list[list[float]]:
    """Return the values of each animation of an attribute."""
    found = [each for each in panel.iter() if each.get('attributeName') == name]
    return [[float(value) for value in each.get('values').split(';')] for each in found]


def near(found: list, wanted: list) -> bool:
    """Return whether all places are the same, as printed."""
    return len(found) == len(wanted) and np.allclose(found, wanted, atol=0.051)


def panels(picture: str) -> list[ElementTree.Element]:
    return ElementTree.fromstring(picture).findall(f'{SVG}g')


def test_the_frames_are_the_recorded_states():
    clip = recorded(60)
    (panel,) = panels(arm_animation({'v1': clip}))
    shoulder, elbow = animations(panel, 'transform')
    # angles increase to the left, in SVG to the right
    assert shoulder == pytest.approx([-math.degrees(f.shoulder_rad) for f in clip.frames], abs=0.1)
    assert elbow == pytest.approx([-math.degrees(f.elbow_rad) for f in clip.frames], abs=0.1)
    traces = panel.findall(f'{SVG}polyline')
    points = [tuple(map(float, p.split(','))) for t in traces for p in t.get('points').split()]
    assert near(points, [hand_place(frame) for frame in clip.frames])
    targets = [t for t in panel.findall(f'{SVG}circle') if t.get('class') == 'target']
    shown = [(float(t.get('cx')), float(t.get('cy'))) for t in targets]
    assert near(shown, [place(*g[0].target_xy) for g, _ in episodes(clip.frames)])


@given(st.floats(-1.9, 1.9), st.floats(-2.4, 2.4))
def test_the_trace_is_at_the_hand_of_the_simulated_arm(shoulder, elbow):
    position = [0.0] * 6
    position[0], position[2] = shoulder, elbow
    frame = ArmFrame(0.0, shoulder, elbow, (0.2, 0.0))
    assert hand_place(frame) == pytest.approx(place(*hand_xy(position)))


@given(st.integers(2, 150), st.integers(1, 6), st.integers(0, 150))
def test_the_picture_is_well_formed_and_small(count, targets, other):
    clips = {'v1': recorded(count, targets=targets), 'v2 <x>': recorded(other), 'v3': ArmClip()}
    clips['v1'].add_outcome(clips['v1'].frames[-1].time_s, True)
    picture = arm_animation(clips)
    assert len(picture) < MOST_BYTES
    for element in ElementTree.fromstring(picture).iter():
        if element.get('keyTimes') is None:
            continue
        times = [float(each) for each in element.get('keyTimes').split(';')]
        assert times == sorted(times) and times[0] == 0 and times[-1] <= 1
        assert times[-1] == 1 or element.get('calcMode') == 'discrete'
        assert len(times) == len(element.get('values').split(';'))


def test_all_panels_have_one_period():
    picture = arm_animation({'v1': recorded(80), 'v2': recorded(30)})
    periods = {each.get('dur') for each in ElementTree.fromstring(picture).iter()} - {None}
    assert len(periods) == 1


def test_each_panel_has_its_version_and_result():
    clip = recorded(60, targets=2)
    change_s = episodes(clip.frames).__next__()[1]
    clip.outcomes = [(change_s - 0.05, True), (clip.frames[-1].time_s, False)]
    picture = arm_animation({'v1': clip, 'v3 <bad>': ArmClip()})
    assert 'reached 1 of 2 targets' in picture and picture.count('no robot controlled') == 1
    assert 'v3 &lt;bad&gt;' in picture
    (good,) = [e for e in ElementTree.fromstring(picture).iter() if e.get('class') == 'good']
    assert (float(good.get('cx')), float(good.get('cy'))) == pytest.approx(
        place(*clip.frames[0].target_xy), abs=0.1
    )


def test_the_picture_is_whole_without_a_script_or_another_file():
    picture = arm_animation({'v1': recorded(60)})
    assert '<script' not in picture and 'href' not in picture and 'url(' not in picture
    assert 'prefers-color-scheme: dark' in picture and 'class="page"' in picture


def test_a_clip_keeps_no_gap_and_no_more_than_its_length():
    clip = ArmClip()
    for time_s in (0.0, 0.1, 0.2, 5.0, 5.1, 5.15, 5.2):
        clip.add(ArmFrame(time_s, 0.0, 0.0, (0.2, 0.0)))
    assert [frame.time_s for frame in clip.frames] == [5.0, 5.1, 5.2]
    long = recorded(2000, period_s=0.02)
    assert RECORDED_S <= long.length_s < RECORDED_S + 0.2
    assert len(long.frames) <= RECORDED_S * FRAMES_HZ * 1.2
    assert long.is_full and not recorded(100).is_full
    half = recorded(round(10 * CLIP_S * 0.6))
    frames = list(half.frames)
    half.add(ArmFrame(half.frames[-1].time_s + GAP_S + 1, 0.0, 0.0, (0.2, 0.0)))
    assert half.frames == frames


def test_a_window_begins_with_a_target_and_has_the_outcomes_of_its_episodes():
    clip = recorded(200, targets=4)
    changes = [group[0].time_s for group, _ in episodes(clip.frames)]
    # the outcome of an episode arrives around the change to the next target
    clip.outcomes = [(changes[1] + 0.05, True), (changes[2] - 0.05, False), (changes[3], True)]
    windows = list(clip.windows())
    assert [window.frames[0].time_s for window in windows] == changes
    assert all(window.length_s <= CLIP_S for window in windows)
    assert [[good for _, good in window.outcomes] for window in windows] == [
        *([True], [False], [True], [])
    ]


def test_the_clip_that_is_most_like_all_episodes_is_shown():
    board = Scoreboard(['robot_1', 'robot_2'])
    board.robots = dict.fromkeys(board.robots, robot_of('/x/edge', policy='v1@1'))
    for number in range(60):
        for name in board.robots:
            board.add_arm_frame(name, ArmFrame(100 + 0.1 * number, 0.1, 0.2, (0.3, 0.0)))
    for time_s, name, good in (
        *((101.0, 'robot_1', True), (102.0, 'robot_1', True), (103.0, 'robot_1', True)),
        *((102.0, 'robot_2', False), (103.0, 'robot_2', True)),
        # after the last frame: of episodes that no clip shows
        *((180.0, 'robot_1', False), (181.0, 'robot_1', False), (182.0, 'robot_1', False)),
    ):
        board.add_outcome(EndedEpisode(time_s, name, 'v1@1', good, 2.0))
    assert board.typical_clip('v1').outcomes == [(102.0, False), (103.0, True)]
    assert board.typical_clip('v2').frames == []
    assert not board.is_recorded('v1')


@given(st.floats(-1.92, 1.92), st.floats(-2.4, 2.4))
def test_the_arm_stays_in_its_panel(shoulder, elbow):
    x, y = hand_place(ArmFrame(0.0, shoulder, elbow, (0.2, 0.0)))
    assert 5 <= x <= PANEL_WIDTH - 5
    assert HEADER_HEIGHT + 3 <= y <= HEADER_HEIGHT + PANEL_HEIGHT - 3
