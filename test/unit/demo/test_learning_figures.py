# SPDX-License-Identifier: Apache-2.0
"""What the acts of learning say of a run."""

from __future__ import annotations

import pytest

from lerobot_serve.demo.results.scoreboard import CORRECTED, EndedEpisode, named, Scoreboard
from lerobot_serve.demo.results.success_gain import EVIDENCE_LOG10, Trial, trial_of
from lerobot_serve.demo.results.summary import ACT_TEXT
from lerobot_serve.demo.tour.act_order import ACT_CLAIMS, LEARNING, TOURS
from lerobot_serve.demo.tour.acts import SERVING_ACTS
from lerobot_serve.demo.tour.learning_acts import LEARNING_ACTS
from lerobot_serve.tools.operate.fleet_state import CanaryView

TEXTS = {
    'learn': (
        {
            'before_percent': 8,
            'after_percent': 92,
            'took_s': 401.4,
            'rounds': [{'evidence': 43}, {'evidence': 21}],
        },
        '8 % of the attempts reached their target before, 92 % after 2 rounds, in 401 s; evidence '
        'of the promotions 43 : 1, 21 : 1',
    ),
    'poison': (
        {'verdict': 'refused', 'episodes': 0, 'why': 'velocity: 2.1 spreads apart'},
        'refused, 0 episodes with it: velocity: 2.1 spreads apart',
    ),
    'regress': (
        {
            'why': 'rolled back: it succeeds less often',
            'rolled_back_after_s': 9.6,
            'episodes_with_it': 21,
            'episodes_with_it_a_second_later': 0,
        },
        'it succeeds less often (10 s after the targets got narrow; 21 episodes with it, 0 a '
        'second later)',
    ),
}


def test_every_act_has_a_function_and_a_text():
    assert {*SERVING_ACTS, *LEARNING_ACTS} == {*ACT_CLAIMS} == {*ACT_TEXT}
    assert {*LEARNING_ACTS} == {*TOURS[LEARNING]} == {*TEXTS}


@pytest.mark.parametrize('act', TEXTS)
def test_an_act_says_what_it_found(act):
    found, text = TEXTS[act]
    assert ACT_TEXT[act](found) == text


def test_the_evidence_of_a_trial_outlasts_its_promotion():
    on_trial = CanaryView(
        candidate_successes=11,
        candidate_failures=1,
        champion_successes=2,
        champion_failures=10,
        evidence_not_worse=EVIDENCE_LOG10,
    )
    found = max(Trial(), trial_of(on_trial), trial_of(CanaryView()))
    assert found.odds == pytest.approx(20.0)
    assert (found.candidate_rate, found.champion_rate) == (11 / 12, 2 / 12)
    assert Trial().candidate_rate == Trial().champion_rate == 0.0


def test_versions_of_one_name_have_their_digest():
    counts = {'reach@1': (1, 9), 'reach@2': (8, 9), CORRECTED: (9, 9), 'v3@7': (0, 1)}
    assert named(counts) == {'reach@1': (1, 9), 'reach@2': (8, 9), CORRECTED: (9, 9), 'v3': (0, 1)}


def test_an_attempt_that_a_person_corrected_is_no_success_of_the_policy():
    board = Scoreboard(['robot_1'])
    board.add_outcome(EndedEpisode(1.0, 'robot_1', CORRECTED, True, 2.0))
    board.add_outcome(EndedEpisode(2.0, 'robot_1', 'reach@1', False, 4.0))
    assert board.successes() == {CORRECTED: (1, 1), 'reach@1': (0, 1)}
