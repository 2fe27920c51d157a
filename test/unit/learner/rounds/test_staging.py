# SPDX-License-Identifier: Apache-2.0
"""Episodes are converted ahead of their round, with played steps."""

from __future__ import annotations

import pytest
from support.learner.learner_rig import LearnerRig

from lerobot_serve.learner.rounds.requests import Command
from lerobot_serve.learner.rounds.states import FIRST_RETRY_S
from lerobot_serve.learner.steps import ConvertJob, Failed, RefusedBag, ScanJob, StageJob


@pytest.fixture
def rig(tmp_path):
    """A learner that has looked for episodes; a round takes 20, four are no fifth of them."""
    made = LearnerRig(tmp_path)
    made.set(episodes_per_round=20)
    made.finish(ScanJob)
    made.announce(1, 2, 3, 4)
    yield made
    made.learner.end()


def test_a_fifth_of_a_round_is_converted_while_the_learner_waits(rig):
    assert not rig.step
    rig.announce(5)
    assert isinstance(rig.step.job, StageJob)
    shown = rig.learner.shown
    assert shown.state.name == 'WAITING'
    assert shown.text.startswith(
        'waits for 15 more episodes (5 of 20), and converts those that are there; '
    )
    rig.finish(StageJob)
    assert rig.staged == ['e1', 'e2', 'e3', 'e4', 'e5']
    assert rig.learner.shown.text.startswith('waits for 15 more episodes (5 of 20); ')
    rig.turn()
    assert not rig.step


def test_each_episode_is_given_once_and_the_round_takes_all(rig):
    for number in range(5, 20):
        rig.announce(number)
        if rig.step:
            rig.finish(StageJob)
    assert rig.staged == [f'e{number}' for number in range(1, 16)]
    rig.announce(20)
    rig.finish(ScanJob)
    assert len(rig.step.job.bags) == 20
    assert isinstance(rig.step.job, ConvertJob)


def test_what_a_round_converted_is_not_converted_again(rig):
    rig.ask(Command.START)
    rig.turn()
    rig.run_round()
    # they are new again
    rig.reject(rig.learner.shown.latest)
    rig.announce(5, 6, 7, 8)
    assert not rig.step
    rig.announce(9)
    assert [bag.episode_id for bag in rig.step.job.bags] == ['e5', 'e6', 'e7', 'e8', 'e9']


def test_a_round_begins_when_the_conversion_ends(rig):
    rig.announce(*range(5, 21))
    # all at once: no conversion ahead
    assert isinstance(rig.step.job, ScanJob) and rig.phase == 'CONVERTING'
    rig.run_round()
    rig.announce(*range(21, 26))
    assert isinstance(rig.step.job, StageJob)
    rig.announce(*range(26, 41))
    assert rig.ask(Command.START)[0]
    assert isinstance(rig.step.job, StageJob) and rig.phase == 'WAITING'
    rig.finish(StageJob)
    rig.run_round()


def test_a_failure_is_said_and_left_to_the_round(rig):
    rig.announce(5)
    rig.report(Failed('bags of two robots'))
    assert any('no episode is converted ahead of a round: bags of' in line for line in rig.log)
    assert not rig.dropped
    assert 'converts' not in rig.learner.shown.text
    rig.now_s += FIRST_RETRY_S
    rig.turn()
    assert not rig.step
    rig.ask(Command.START)
    rig.turn()
    rig.finish(ScanJob)
    assert len(rig.step.job.bags) == 5


def test_a_refused_bag_is_not_converted_ahead_of_the_next_round(rig):
    sha256 = f'{1:064x}'
    rig.refused[sha256] = RefusedBag(sha256, 'not_converted', 'another robot')
    rig.ask(Command.START)
    rig.turn()
    rig.run_round()
    rig.announce(5, 6, 7, 8)
    assert not rig.step


def test_a_pause_ends_the_conversion_and_a_restart_begins_it_again(rig):
    rig.announce(5)
    staging = rig.step
    assert rig.ask(Command.PAUSE)[0]
    assert staging.is_asked_to_end and rig.phase == 'PAUSED'
    rig.announce(*range(6, 11))
    assert not rig.step
    rig.ask(Command.RESUME)
    rig.turn()
    assert [bag.episode_id for bag in rig.step.job.bags] == [f'e{n}' for n in range(6, 11)]
    rig.restart()
    rig.finish(ScanJob)
    rig.turn()
    # what is staged already costs nothing
    assert len(rig.step.job.bags) == 10


def test_a_bag_that_changed_is_refused_ahead_of_its_round_and_counted(rig):
    rig.announce(5)
    sha256 = f'{1:064x}'
    rig.report(RefusedBag(sha256, 'changed', 'it is not the bag that was announced'))
    rig.finish(StageJob)
    shown = rig.learner.shown
    assert (rig.dropped, shown.episodes_new) == ({'changed': 1}, 4)
