# SPDX-License-Identifier: Apache-2.0
"""What the acts of learning say of a run."""

from __future__ import annotations

import pytest
from support.demo.parts import LEARNED

from lerobot_serve.demo.results.run_records import (
    passed_comparison,
    PassedComparison,
    with_gain,
)
from lerobot_serve.demo.results.scoreboard import CORRECTED, EndedEpisode, named, Scoreboard
from lerobot_serve.demo.results.summary import ACT_TEXT
from lerobot_serve.demo.tour.act_order import ACT_CLAIMS, LEARNING, TOURS
from lerobot_serve.demo.tour.acts import SERVING_ACTS
from lerobot_serve.demo.tour.learning_acts import LEARNING_ACTS


def test_every_act_has_a_function_and_a_text():
    assert {*SERVING_ACTS, *LEARNING_ACTS} == {*ACT_CLAIMS} == {*ACT_TEXT}
    assert {*LEARNING_ACTS} == {*TOURS[LEARNING]} == {*LEARNED}


def compared(time_s: float, log10: float, candidate: int, champion: int) -> PassedComparison:
    """Return a comparison of twenty episodes each."""
    evidence = {'log10_not_worse': log10, 'log10_level': 1.301}
    for slot, good in (('candidate', candidate), ('champion', champion)):
        evidence |= {f'{slot}_successes': good, f'{slot}_failures': 20 - good}
    return passed_comparison(time_s, evidence)


def learned(*promoted_at_s: float) -> dict:
    rounds = [{'round': i + 1, 'promoted_at_s': time_s} for i, time_s in enumerate(promoted_at_s)]
    return {'shown': True, 'took_s': 1.0, 'rounds': rounds}


def test_the_gain_of_two_rounds_is_from_the_first_champion_to_the_last_version():
    # the second rollout had two steps; what comes after the last promotion is of another act
    steps = [
        compared(10.0, 1.4, 14, 5),
        compared(20.0, 1.35, 16, 15),
        compared(25.0, 1.5, 19, 15),
        compared(90.0, 3.0, 20, 0),
    ]
    found = with_gain(learned(10.5, 25.5), steps)
    assert (found['before_percent'], found['after_percent'], found['shown']) == (25, 95, True)
    first, second = found['rounds']
    assert (first['candidate'], first['champion']) == ([14, 20], [5, 20])
    assert (second['evidence'], second['candidate']) == (31.6, [19, 20])


@pytest.mark.parametrize(
    'steps',
    [
        # too small a gain, too little evidence, none at all
        [compared(10.0, 1.4, 16, 15), compared(20.0, 1.4, 18, 16)],
        [compared(10.0, 1.4, 14, 5), compared(20.0, 1.29, 19, 15)],
        [],
    ],
)
def test_a_gain_that_is_not_proved_is_not_shown(steps):
    found = with_gain(learned(10.5, 20.5), steps)
    assert not found['shown']
    assert ACT_TEXT['learn'](found)


def test_versions_of_one_name_have_their_digest():
    counts = {'reach@1': (1, 9), 'reach@2': (8, 9), CORRECTED: (9, 9), 'v3@7': (0, 1)}
    assert named(counts) == {'reach@1': (1, 9), 'reach@2': (8, 9), CORRECTED: (9, 9), 'v3': (0, 1)}


def test_an_attempt_that_a_person_corrected_is_no_success_of_the_policy():
    board = Scoreboard(['robot_1'])
    board.add_outcome(EndedEpisode(1.0, 'robot_1', CORRECTED, True, 2.0))
    board.add_outcome(EndedEpisode(2.0, 'robot_1', 'reach@1', False, 4.0))
    assert board.successes() == {CORRECTED: (1, 1), 'reach@1': (0, 1)}
