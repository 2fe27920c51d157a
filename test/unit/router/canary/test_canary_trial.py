# SPDX-License-Identifier: Apache-2.0
"""Episodes of a step: where each counts, and that no order of reports helps a promotion."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
import pytest

from lerobot_serve.router.canary.evidence import trial as module
from lerobot_serve.router.canary.evidence.trial import (
    abort_gain,
    EpisodeBlock,
    promotion_gain,
    rollback_gain,
    StepTrial,
)
from lerobot_serve.router.canary.facts import ArmCounts, ARMS, BEGUN, ENDS, EpisodeEvent

EPISODES = st.lists(st.tuples(st.sampled_from(ARMS), st.sampled_from(ENDS)), max_size=80)


def begun(number: int, arm: str) -> EpisodeEvent:
    return EpisodeEvent(f'e{number}', BEGUN, arm)


def ended(number: int, arm: str, what: str) -> EpisodeEvent:
    return EpisodeEvent(f'e{number}', what, arm)


def counted(trial: StepTrial) -> list[float]:
    """Return the evidence of the episodes, whatever runs of failures take of it."""
    return [*trial.wide.best.values(), *trial.narrow.best.values()]


def play(episodes, trial: StepTrial | None = None) -> StepTrial:
    """Each episode ends before the next begins."""
    trial = trial or StepTrial(0.1, 5)
    for number, (arm, what) in enumerate(episodes):
        trial.take([begun(number, arm), ended(number, arm, what)])
    return trial


# what each end is worth, as the table in the module says
WORTH = {
    promotion_gain: {
        'candidate': {'success': 1},
        'champion': {'success': 1, 'moved': 1, 'unreported': 1, '': 1},
    },
    rollback_gain: {
        'candidate': {'success': 1, 'unreported': 1, '': 1},
        'champion': {'success': 1},
    },
    abort_gain: {'candidate': {'aborted': 1, '': 1}, 'champion': {'aborted': 1}},
}


@pytest.mark.parametrize('gain', WORTH)
@pytest.mark.parametrize('candidate', [*ENDS, ''])
@pytest.mark.parametrize('champion', [*ENDS, ''])
def test_each_end_counts_as_the_table_says(gain, candidate, champion):
    block = EpisodeBlock(ArmCounts(2), ArmCounts(2))
    for arm, what in ((block.candidate, candidate), (block.champion, champion)):
        arm.count('failure')
        if what:
            arm.count(what)
    mine = WORTH[gain]['candidate'].get(candidate, 0) / 2
    its = WORTH[gain]['champion'].get(champion, 0) / 2
    assert gain(block) == (mine - its if gain is promotion_gain else its - mine)


@given(EPISODES, st.randoms(use_true_random=False), st.integers(1, 7))
def test_no_order_of_reports_gives_more_evidence_than_the_truth(episodes, rng, every):
    """Verdicts come in any order and late; at each look the evidence is at most the final one."""
    final = play(episodes, StepTrial(0.1, 3))
    late, waiting, seen = StepTrial(0.1, 3), [], [0.0] * 3
    for number, (arm, what) in enumerate(episodes):
        late.take([begun(number, arm)])
        waiting.append(ended(number, arm, what))
        if number % every == 0:
            rng.shuffle(waiting)
            late.take([waiting.pop() for _ in range(rng.randint(0, len(waiting)))])
        seen = [max(pair) for pair in zip(seen, counted(late), strict=True)]
    assert all(a <= b + 1e-9 for a, b in zip(seen, counted(final), strict=True))
    rng.shuffle(waiting)
    late.take(waiting)
    assert late.evidence == pytest.approx(final.evidence)


@given(EPISODES, st.integers(0, 79), st.sampled_from(ENDS))
def test_a_candidate_that_loses_a_verdict_is_never_promoted_sooner(episodes, at, what):
    worse = list(episodes)
    if at < len(worse) and worse[at] == ('candidate', 'success'):
        worse[at] = 'candidate', what
    assert play(worse).evidence[0] <= play(episodes).evidence[0] + 1e-9


@given(EPISODES, st.integers(0, 79))
def test_a_champion_that_loses_a_verdict_never_helps_the_candidate(episodes, at):
    other = list(episodes)
    if at < len(other) and other[at] == ('champion', 'failure'):
        other[at] = 'champion', 'moved'
    assert play(other).evidence[0] <= play(episodes).evidence[0] + 1e-9


@given(EPISODES, EPISODES, st.integers(0, 30))
def test_it_goes_on_from_what_it_remembers(before, after, still_open):
    events = [begun(i, arm) for i, (arm, _) in enumerate(before)]
    events += [ended(i, *episode) for i, episode in enumerate(before) if i >= still_open]
    first = StepTrial(0.1, 5)
    first.take(events)
    again = StepTrial(0.1, 5)
    again.restore(first.stored())
    assert again.stored() == first.stored()
    rest = [ended(i, *episode) for i, episode in enumerate(before[:still_open])]
    for number, (arm, what) in enumerate(after, start=1000):
        rest += [begun(number, arm), ended(number, arm, what)]
    for each in (first, again):
        each.take(rest)
    assert again.stored() == first.stored()
    assert again.evidence == first.evidence
    assert again.open == {}


def test_what_did_not_begin_in_this_step_does_not_count():
    trial = StepTrial(0.1, 5)
    trial.take([ended(1, 'candidate', 'failure')])
    trial.take([begun(2, 'candidate'), ended(2, 'candidate', 'success')])
    trial.take([ended(2, 'candidate', 'failure'), begun(3, 'champion')])
    assert trial.totals['candidate'] == ArmCounts(begun=1, success=1)
    assert trial.open == {'e3': 'champion'}


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(module, 'BLOCKS_LIMIT', 20)
    monkeypatch.setattr(module, 'OPEN_LIMIT', 30)
    trial = StepTrial(0.1, 1)
    for number in range(400):
        trial.take([begun(number, ARMS[number % 2])])
    memory = trial.stored()
    assert len(memory.open) == 30
    assert len(memory.wide.blocks) <= 21
    assert trial.totals['candidate'].unreported == 185
    # what is settled stays at its worst, and is counted
    trial.take([ended(399, 'champion', 'failure'), ended(0, 'candidate', 'success')])
    assert trial.totals['champion'].failure == 1
    assert trial.totals['candidate'].success == 0


@pytest.mark.parametrize('what', ENDS)
def test_an_arm_adds_up(what):
    arm = replace(ArmCounts(begun=2))
    arm.count(what)
    assert (arm.open, getattr(arm, what)) == (1, 1)
