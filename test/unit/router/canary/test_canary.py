# SPDX-License-Identifier: Apache-2.0
"""The canary step by step: what it does, and what it says."""

from __future__ import annotations

from dataclasses import replace
import math

import pytest
from support.router.canary_rig import NEW, OLD, plan, QUICK, started, terms, whats, World

from lerobot_serve.router.canary.canary import Canary, CanaryCommandRejected
from lerobot_serve.router.canary.record import StepComparison
from lerobot_serve.router.canary.states import CanaryPhase
from lerobot_serve.router.parameters import RouterParameters


def test_without_a_plan_there_is_no_canary():
    world = World(Canary(None))
    world.good_episodes()
    assert world.poll() == ()
    assert (world.canary.state, world.canary.share_percent) == (CanaryPhase.OFF, None)
    for word in (world.canary.pause, world.canary.promote, world.canary.rollback):
        with pytest.raises(CanaryCommandRejected, match='a canary that is off: no canary'):
            word('why')


def test_from_the_first_step_to_all_episodes():
    world, shares = World(), []
    while world.canary.state is not CanaryPhase.PROMOTED:
        shares += [world.canary.share_percent] if world.canary.share_percent not in shares else []
        world.good_episodes()
        world.wait(60)
    assert shares == [0, 5, 25, 50]
    assert (world.canary.share_percent, world.canary.step) == (100, 3)
    told = whats(world.canary.history)
    assert told == ['began', 'started', 'passed', 'promoted', 'promoted', 'promoted']
    assert world.canary.history[-1].why.startswith(
        'all new episodes to the candidate; candidate 9'
    )
    assert world.canary.text.startswith(
        'promoted: all new episodes to the candidate; watched for 0'
    )


@pytest.mark.parametrize(
    ('change', 'told'),
    [
        ({'others': {'missing': 'shadowed for 3 of 24 h'}}, 'waiting: shadowed for 3 of 24 h'),
        ({'candidate': {'healthy': False, 'health_text': 'drained'}}, 'candidate is not healthy'),
        ({'champion': {'healthy': False}}, 'the slot of the champion is not healthy'),
        ({'candidate': {'policy': ''}}, 'the policy of the candidate is not known yet'),
        ({'champion': {'policy': ''}}, 'the policy of the champion is not known yet'),
    ],
)
def test_it_waits_until_both_slots_are_there(change, told):
    world = World()
    world.others = change.get('others', {})
    for slot in ('candidate', 'champion'):
        world.change(slot, **change.get(slot, {}))
    world.wait(100)
    assert (world.canary.state, world.canary.share_percent) == (CanaryPhase.WAITING, 0)
    assert told in world.canary.text
    with pytest.raises(CanaryCommandRejected, match='cannot promote a canary that is waiting'):
        world.canary.promote('now')
    world.others = {}
    world.change('candidate', healthy=True, policy=NEW)
    world.change('champion', healthy=True, policy=OLD)
    assert whats(world.poll()) == ['started']
    assert world.canary.share_percent == 5


def test_a_step_takes_its_least_episodes_and_its_least_time():
    world = started(plan=plan(seconds=100.0, episodes=20))
    world.good_episodes()
    world.wait(90)
    assert world.canary.state is CanaryPhase.RUNNING
    assert world.canary.text == (
        'running: step 1 of 4, 5 % of new episodes to the candidate: 20 of 20 episodes of the '
        'candidate, 91 of 100 s; candidate 90 % of 20, champion 90 % of 100'
    )
    world.wait(10)
    assert world.canary.step == 1
    world.end('candidate', 19)
    world.end('champion', 100)
    world.wait(500)
    assert (world.canary.step, world.canary.state) == (1, CanaryPhase.RUNNING)
    world.end('candidate', 1)
    world.poll()
    assert world.canary.step == 2


def test_progress_reads_as_a_person_would_write_it():
    world = started(plan=plan(seconds=20.0, episodes=5))
    world.end('candidate', 6)
    world.end('champion', 100)
    world.poll(after_s=5.44)
    assert ': 5 of 5 episodes of the candidate, 6.4 of 20 s; candidate' in world.canary.text
    instant = started(plan=plan(seconds=0.0, episodes=5))
    instant.poll()
    assert ': 0 of 5 episodes of the candidate; candidate no outcome' in instant.canary.text


def test_undecided_it_holds_and_says_how_many_more():
    world = started(rules=terms(margin=0.1))
    world.end('candidate', 40, 10)
    world.end('champion', 800, 200)
    world.wait(100)
    assert (world.canary.state, world.canary.share_percent) == (CanaryPhase.UNDECIDED, 5)
    assert world.canary.text.startswith(
        'undecided: candidate 80 % of 50, champion 80 % of 1000. At the present rates, about 2'
    )
    assert world.canary.text.endswith('until promotion')


def test_a_worse_candidate_is_rolled_back_before_its_time():
    world = started(rules=RouterParameters())
    world.end('candidate', 5, 25)
    world.end('champion', 90, 10)
    assert whats(world.poll()) == ['rolled_back']
    assert (world.canary.state, world.canary.share_percent) == (CanaryPhase.ROLLED_BACK, 0)
    assert world.canary.text == (
        'rolled back: the candidate is worse than the champion: candidate 17 % of 30, champion '
        '90 % of 100; wrong in at most 5 % of canaries with a candidate that is not worse'
    )


@pytest.mark.parametrize('by_hand', [True, False])
def test_what_was_shown_is_forgotten_when_it_begins_anew(by_hand):
    world = started(rules=RouterParameters())
    world.end('candidate', 5, 25)
    world.end('champion', 90, 10)
    world.poll()
    assert world.canary.state is CanaryPhase.ROLLED_BACK
    if by_hand:
        world.canary.resume('another lamp')
    else:
        world.change('candidate', policy='better@3')
        world.poll()
        world.canary.start_for('better@3', by='kim@lab')
    world.wait(100)
    assert (world.canary.state, world.canary.share_percent) == (CanaryPhase.RUNNING, 5)
    assert world.canary.record.comparison == StepComparison()


def test_what_a_step_has_half_shown_does_not_count_in_the_next():
    world = started(rules=terms(margin=0.4))
    world.end('candidate', 12, 1)
    world.end('champion', 90, 10)
    world.poll()
    assert 0 < world.canary.record.comparison.not_worse < world.canary.rules.promotion_level
    world.canary.promote('sure')
    assert world.canary.record.comparison == StepComparison()


def test_the_highest_evidence_is_kept():
    world, before = (
        started(rules=terms(margin=0.4, false_promotion=1e-9)),
        (0.0, 0.0),
    )
    for ends in ({'success': 15}, {'failure': 3}, {'success': 15}):
        world.end('candidate', **ends)
        world.end('champion', 90, 10)
        world.poll()
        comparison = world.canary.record.comparison
        assert comparison.not_worse >= before[0]
        assert comparison.worse >= before[1]
        before = comparison.not_worse, comparison.worse
    assert min(before) > 0


def test_a_later_step_compares_only_its_own_episodes():
    world = World(Canary(plan(), terms(margin=0.3, block_episodes=1))).start()
    world.end('candidate', 60)
    world.end('champion', 950, 50)
    world.wait(100)
    assert world.canary.step == 1
    # a bad day for both: pooled with the good one the candidate would look worse
    world.end('candidate', 50, 50)
    world.end('champion', 50, 50)
    world.wait(100)
    assert world.canary.step == 2
    # and a candidate that has become bad is not carried by its past
    world.end('candidate', 10, 90)
    world.end('champion', 50, 50)
    world.poll()
    assert world.canary.state is CanaryPhase.ROLLED_BACK


@pytest.mark.parametrize(
    ('candidate', 'champion'),
    [
        # what ends without a verdict is at its worst for a promotion
        ({'success': 80, 'moved': 20}, {'success': 120}),
        ({'success': 80, 'unreported': 20}, {'success': 120}),
        ({'success': 80, 'aborted': 20}, {'success': 120}),
        ({'success': 80, 'open': 20}, {'success': 120}),
        ({'success': 80, 'failure': 20}, {'success': 80, 'moved': 40}),
        ({'success': 80, 'failure': 20}, {'success': 80, 'unreported': 40}),
        ({'success': 80, 'failure': 20}, {'success': 80, 'open': 40}),
    ],
)
def test_a_verdict_that_is_lost_never_helps_the_candidate(candidate, champion):
    world = started(rules=terms(margin=0.2, false_rollback=1e-9, block_episodes=1))
    world.end('candidate', **candidate)
    world.end('champion', **champion)
    world.wait(100)
    assert (world.canary.state, world.canary.step) == (CanaryPhase.UNDECIDED, 0)
    assert 'undecided' in world.canary.text
    control = started(rules=terms(margin=0.2, false_rollback=1e-9, block_episodes=1))
    control.end('candidate', 100)
    control.end('champion', 120)
    control.wait(100)
    assert control.canary.step == 1


def test_a_verdict_of_hours_later_counts():
    world = started(rules=terms(margin=0.2, block_episodes=1))
    world.end('candidate', open=100)
    world.end('champion', open=120)
    world.wait(10_000)
    assert (world.canary.state, world.canary.step) == (CanaryPhase.RUNNING, 0)
    world.verdicts('candidate', 'success')
    world.poll()
    assert world.canary.step == 0
    world.verdicts('champion', 'success')
    world.wait(100)
    assert world.canary.step == 1


def test_a_late_failure_changes_no_promotion_because_it_was_counted_as_one_before():
    world = started()
    world.good_episodes()
    # episodes without a verdict yet, in the blocks that decide, count as failures already
    world.end('candidate', open=5)
    world.end('champion', 25)
    world.wait(100)
    assert world.canary.step == 1
    assert world.canary.open_episodes == {}
    # they began in the step before, so what becomes of them says nothing of this one
    for event in world.episode('candidate', 'open'):
        world.later.append(event._replace(what='failure'))
    world.poll()
    assert world.seen.candidate.arm.begun == 0
    assert world.canary.step == 1


def test_a_champion_that_is_aborted_more_often_holds():
    world = started(rules=terms(margin=0.1))
    world.end('candidate', 60)
    world.end('champion', 60, aborted=40)
    world.wait(100)
    assert (world.canary.state, world.canary.step) == (CanaryPhase.UNDECIDED, 0)
    assert 'aborted more often than those of the candidate (40 of 100, 0 of 60)' in (
        world.canary.text
    )
    equal = started(rules=terms(margin=0.3, block_episodes=1))
    equal.end('candidate', 60, aborted=10)
    equal.end('champion', 60, aborted=10)
    equal.wait(100)
    assert equal.canary.step == 1


def test_lost_verdicts_are_named_with_what_to_do():
    world = started(rules=terms(margin=0.05))
    world.end('candidate', 40, 5, unreported=4, moved=1)
    world.end('champion', 45, 5)
    world.wait(100)
    assert (
        'Episodes without an outcome: 5 of 50 of the candidate (4 unreported, 1 moved). Each '
        'counts against the candidate; publish an EpisodeOutcome for every episode'
    ) in world.canary.text


@pytest.mark.parametrize('state', [CanaryPhase.RUNNING, CanaryPhase.UNDECIDED, CanaryPhase.PAUSED])
@pytest.mark.parametrize(
    'bad',
    [
        {'failed_replies': 50},
        {'latency_ms_p95': 500.0},
        {'trips': 4000},
        {'fallbacks': 4000},
        {'healthy': False},
    ],
)
def test_a_guard_rolls_back_at_once(state, bad):
    world = started(rules=RouterParameters())
    world.end('candidate', 16, 4)
    world.end('champion', 85, 15)
    if state is CanaryPhase.UNDECIDED:
        world.wait(100)
    if state is CanaryPhase.PAUSED:
        world.canary.pause('lunch')
    world.poll()
    assert world.canary.state is state
    world.change('candidate', **bad)
    assert whats(world.poll()) == ['rolled_back']
    assert world.canary.share_percent == 0


@pytest.mark.parametrize(
    ('change', 'told'),
    [
        ({'others': {'missing': 'no shadow'}}, 'undecided: no shadow'),
        ({'champion': {'healthy': False, 'health_text': 'gone'}}, 'champion is not healthy: gone'),
        ({'candidate': {'policy': ''}}, 'policy of the candidate is not known'),
        ({'candidate': {'commands': 10}}, 'lerobot_serve.executed'),
        ({'candidate': {'latency_ms_p95': math.nan}}, 'too few replies of the candidate'),
        ({'champion': {'latency_ms_p95': math.nan}}, 'too few replies of the champion'),
    ],
)
def test_missing_data_never_promotes(change, told):
    world = started()
    world.good_episodes()
    world.others = change.get('others', {})
    for slot in ('candidate', 'champion'):
        world.change(slot, **change.get(slot, {}))
    world.wait(1000)
    assert (world.canary.state, world.canary.step) == (CanaryPhase.UNDECIDED, 0)
    assert told in world.canary.text


def test_after_a_hold_it_goes_on():
    world = started()
    world.good_episodes()
    world.others = {'missing': 'x'}
    world.wait(100)
    world.others = {}
    world.poll()
    assert world.canary.step == 1


def test_no_divergence_holds_where_it_has_a_limit():
    world = started(rules=replace(QUICK, canary_max_divergence=2.0))
    world.good_episodes()
    world.wait(100)
    assert 'observations with a divergence: 0 of 20' in world.canary.text
    world.others = {'divergence': 1.0, 'divergence_samples': 50}
    world.poll()
    assert world.canary.step == 1


def test_a_policy_is_not_tried_against_itself():
    world = World()
    world.champion = replace(world.champion, policy=NEW)
    world.poll()
    world.poll()
    assert world.canary.state is CanaryPhase.WAITING
    assert f'both slots serve {NEW}' in world.canary.text
    with pytest.raises(CanaryCommandRejected):
        world.canary.promote('a test')
    world.champion = replace(world.champion, policy=OLD)
    world.poll()
    assert world.canary.state is CanaryPhase.RUNNING
