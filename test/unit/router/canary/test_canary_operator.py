# SPDX-License-Identifier: Apache-2.0
"""A canary and its operators: their words, other policies and plans, time, and the table."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.router.canary_rig import NEW, plan, QUICK, started, whats, World

from lerobot_serve.router.canary.canary import CanaryCommandRejected
from lerobot_serve.router.canary.record import HISTORY_LIMIT, StepComparison
from lerobot_serve.router.canary.states import CanaryPhase, CanaryTrigger, TRANSITIONS
from lerobot_serve.router.parameters import RouterParameters

# an operator's word


def test_a_paused_canary_keeps_its_share_and_its_time():
    world = started()
    assert world.canary.pause('  look at\nrobot 7 ') == ('paused: by an operator: look at robot 7')
    world.good_episodes()
    world.wait(1000)
    assert (world.canary.state, world.canary.share_percent) == (CanaryPhase.PAUSED, 5)
    assert 'by an operator: look at robot 7; step 1 of 4' in world.canary.text
    world.canary.resume('ok')
    world.poll(after_s=30)
    assert world.canary.step == 0
    world.wait(60)
    assert world.canary.step == 1


def test_an_operator_may_promote_without_waiting():
    world = started(rules=RouterParameters())
    assert 'step 2 of 4, 25 % of new episodes' in world.canary.promote('Ann: urgent')
    world.poll()
    # a promotion by hand proves nothing: the next one waits for the comparison again
    world.end('candidate', 16, 4)
    world.end('champion', 16, 4)
    world.wait(1000)
    assert (world.canary.state, world.canary.step) == (CanaryPhase.UNDECIDED, 1)
    world.canary.promote('Ann')
    world.poll()
    world.canary.pause('Bob')
    world.canary.promote('Ann')
    assert (world.canary.state, world.canary.share_percent) == (CanaryPhase.PROMOTED, 100)
    assert 'Ann' in world.canary.text


def test_a_paused_canary_that_is_promoted_stays_paused():
    world = started()
    world.canary.pause('by hand from here')
    world.canary.promote('step')
    world.good_episodes()
    world.wait(1000)
    assert (world.canary.state, world.canary.share_percent) == (CanaryPhase.PAUSED, 25)


@pytest.mark.parametrize(
    ('change', 'told'),
    [
        ({'others': {'missing': 'no shadow'}}, 'not promoted: no shadow'),
        ({'candidate': {'policy': ''}}, 'policy of the candidate is not known'),
    ],
)
@pytest.mark.parametrize('paused', [False, True])
def test_an_operator_cannot_promote_what_may_take_no_traffic(change, told, paused):
    world = started()
    if paused:
        world.canary.pause('x')
    world.others = change.get('others', {})
    world.change('candidate', **change.get('candidate', {}))
    world.poll()
    with pytest.raises(CanaryCommandRejected) as error:
        world.canary.promote('now')
    assert told in str(error.value)
    assert world.canary.step == 0


def test_a_champion_that_is_ill_does_not_bind_an_operator():
    world = started()
    world.change('champion', healthy=False)
    world.poll()
    assert world.canary.state is CanaryPhase.UNDECIDED
    world.canary.promote('the champion is lost')
    assert world.canary.step == 1


@pytest.mark.parametrize('step', [0, 2, 3])
def test_an_operator_may_always_roll_back_and_begin_anew(step):
    world = World().to_step(step)
    told = world.canary.rollback('a bad feeling')
    assert told == 'rolled back: by an operator: a bad feeling'
    world.good_episodes()
    world.wait(1000)
    assert (world.canary.state, world.canary.share_percent) == (CanaryPhase.ROLLED_BACK, 0)
    for word in (world.canary.promote, world.canary.rollback, world.canary.pause):
        with pytest.raises(
            CanaryCommandRejected, match='a canary that is rolled back: rolled back: by'
        ):
            word('again')
    assert world.canary.resume('it was the lamp').startswith(
        'waiting: counts reset; by an operator'
    )
    world.poll()
    assert (world.canary.share_percent, world.canary.step) == (5, 0)
    world.wait(1000)
    assert world.canary.step == 0


def test_a_reason_is_one_line_of_bounded_length():
    world = started()
    assert len(world.canary.pause('x\n' * 10**6)) < 600
    assert 'no reason given' in world.canary.rollback('')


# what begins anew


def test_another_champion_restarts_it():
    world = World().to_step(2)
    world.change('champion', policy='other@3')
    happened = world.poll()
    assert whats(happened) == ['restarted', 'started']
    assert 'the champion is now other@3; it was' in happened[0].why
    assert (world.canary.share_percent, world.canary.step) == (5, 0)
    assert world.canary.record.comparison == StepComparison()
    # enough episodes, but what has passed was the other policy
    world.end('candidate', 7, 3)
    world.end('champion', 90, 10)
    world.wait(1000)
    assert (world.canary.state, world.canary.step) == (CanaryPhase.UNDECIDED, 0)
    assert 'undecided' in world.canary.text


def test_a_canary_that_is_over_concerns_the_candidate_alone():
    for end in (lambda world: world.to_step(3), lambda world: world.start()):
        world = World()
        end(world)
        if world.canary.state is not CanaryPhase.PROMOTED:
            world.canary.rollback('x')
        state = world.canary.state
        world.change('champion', policy='other@3')
        world.poll()
        assert world.canary.state is state
        world.change('candidate', policy='other@4')
        assert whats(world.poll()) == ['restarted']


def test_a_policy_that_is_not_known_for_a_while_changes_nothing():
    world = started()
    world.good_episodes()
    world.change('candidate', policy='')
    world.wait(100)
    world.change('candidate', policy=NEW)
    world.poll()
    assert world.canary.step == 1


def test_another_plan_or_other_terms_begin_anew():
    world = World().to_step(2)
    world.canary.change_plan(plan(), QUICK)
    assert world.canary.step == 2
    world.canary.change_plan(plan('10', '100'), QUICK)
    assert (world.canary.state, world.canary.share_percent) == (CanaryPhase.WAITING, 0)
    assert 'counts reset; new plan: 10:10:60, 100' in world.canary.text
    world.poll()
    assert world.canary.share_percent == 10
    world.canary.change_plan(plan('10', '100'), RouterParameters())
    assert world.canary.state is CanaryPhase.WAITING
    world.canary.change_plan(None, RouterParameters())
    assert (world.canary.state, world.canary.share_percent) == (CanaryPhase.OFF, None)
    world.canary.change_plan(plan('10', '100'), RouterParameters())
    assert world.canary.state is CanaryPhase.WAITING


def test_limits_may_change_at_any_time():
    world = started()
    world.end('candidate', 9, 1)
    world.change('candidate', latency_ms_p95=150.0)
    world.canary.change_plan(plan(), replace(QUICK, canary_max_latency_ratio=4.0))
    world.end('champion', 90, 10)
    world.poll()
    assert world.canary.state is CanaryPhase.RUNNING
    world.canary.change_plan(plan(), QUICK)
    world.poll()
    assert world.canary.state is CanaryPhase.ROLLED_BACK


# time


def test_a_clock_that_jumps_promotes_nothing():
    world = started(plan=plan(seconds=600.0))
    world.good_episodes()
    world.poll(after_s=10**6)
    assert world.canary.step == 0
    assert world.canary.record.time_ns <= 62 * 10**9
    world.now_ns = 0
    world.poll(after_s=0)
    assert world.canary.record.time_ns <= 62 * 10**9


def test_history_is_bounded():
    world = started()
    for _ in range(HISTORY_LIMIT):
        world.canary.pause('x')
        world.canary.resume('y')
    assert len(world.canary.history) == HISTORY_LIMIT
    assert world.canary.history[-1].what == 'resumed'


# the table


def test_nothing_but_a_person_or_another_policy_leads_out_of_the_ends():
    ways = {state: {event for s, event in TRANSITIONS if s is state} for state in CanaryPhase}
    assert ways[CanaryPhase.PROMOTED] == {
        CanaryTrigger.ROLL_BACK,
        CanaryTrigger.RESTART,
        CanaryTrigger.STOP,
    }
    assert ways[CanaryPhase.ROLLED_BACK] == {
        CanaryTrigger.RESUME,
        CanaryTrigger.RESTART,
        CanaryTrigger.STOP,
    }


def test_every_state_can_be_left_and_reached():
    assert {state for state, _ in TRANSITIONS} == set(CanaryPhase) == set(TRANSITIONS.values())
    assert {event for _, event in TRANSITIONS} == set(CanaryTrigger)


def test_the_table_in_the_text_is_the_table():
    from lerobot_serve.router.canary import states

    lines = [line.split() for line in states.__doc__.splitlines() if line.startswith('  ')]
    header, rows = lines[0], {line[0]: line[1:] for line in lines[1:]}
    for state in CanaryPhase:
        for event, cell in zip(header, rows[state.name], strict=True):
            after = TRANSITIONS.get((state, CanaryTrigger[event]))
            assert cell == (after.name if after else '.'), (state, event)
        assert TRANSITIONS.get((state, CanaryTrigger.STOP)) is (
            None if state is CanaryPhase.OFF else CanaryPhase.OFF
        )
