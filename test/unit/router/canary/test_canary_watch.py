# SPDX-License-Identifier: Apache-2.0
"""The watch after a promotion: what ends it, what rolls back, and what survives a restart."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
import json

import pytest
from support.router.canary_rig import plan, started, terms, whats, World

from lerobot_serve.router.canary.canary import Canary
from lerobot_serve.router.canary.facts import ArmCounts, SlotFacts
from lerobot_serve.router.canary.states import CanaryPhase
from lerobot_serve.router.canary.watch import (
    Champion,
    is_complete,
    watch_action,
    WatchAction,
    WatchFinding,
    WatchRecord,
)

MINIMUM = terms(
    margin=0.2, false_promotion=0.2, block_episodes=1, watch_episodes=100, watch_hours=1.0
)


def promoted() -> World:
    """Return a world with a candidate that its evidence has promoted."""
    world = World(Canary(plan(), MINIMUM)).start()
    while world.canary.state is not CanaryPhase.PROMOTED:
        world.end('candidate', 36, 4)
        world.end('champion', 90, 10)
        world.wait(100)
    return world


@pytest.mark.parametrize('row', product(Champion, WatchFinding, (False, True)), ids=str)
def test_what_the_actions_may_be(row):
    """Roll back only to a champion that can take over, and pass only without a finding."""
    champion, finding, complete = row
    action = watch_action(champion, finding, is_complete=complete)
    if finding is not WatchFinding.NONE:
        is_warm = champion is Champion.WARM
        assert action is (WatchAction.ROLL_BACK if is_warm else WatchAction.KEEP)
    else:
        passes = complete and champion is not Champion.REPLACED
        assert action is (WatchAction.PASS if passes else WatchAction.WATCH)


@pytest.mark.parametrize(
    ('slot', 'state'),
    [
        (SlotFacts(healthy=True, policy='old@2'), Champion.WARM),
        (SlotFacts(healthy=False, policy='old@2'), Champion.COLD),
        (SlotFacts(healthy=True, policy=''), Champion.COLD),
        (SlotFacts(healthy=False, policy=''), Champion.COLD),
        (SlotFacts(healthy=True, policy='new@1'), Champion.REPLACED),
        (SlotFacts(healthy=False, policy='other@3'), Champion.REPLACED),
    ],
)
def test_what_slot_a_is(slot, state):
    assert WatchRecord('old@2').champion_state(slot) is state


@pytest.mark.parametrize(
    ('counts', 'hours', 'complete'),
    [
        (ArmCounts(begun=100, success=60, failure=30, aborted=10), 1.0, True),
        (ArmCounts(begun=100, success=60, failure=30, aborted=9), 1.0, False),
        (ArmCounts(begun=200, success=99, moved=50, unreported=51), 1.0, False),
        (ArmCounts(begun=100, success=100), 0.999, False),
        (ArmCounts(begun=900, success=900), 0.5, False),
    ],
)
def test_it_takes_both_minimums(counts, hours, complete):
    assert is_complete(counts, int(hours * 3600e9), MINIMUM) is complete


def test_after_the_promotion_it_says_what_it_watches():
    world = promoted()
    assert world.canary.is_watching
    world.end('candidate', 9, 1)
    world.wait(100)
    assert world.canary.state is CanaryPhase.PROMOTED
    said = world.canary.text
    assert said.startswith('promoted: all new episodes to the candidate; watched for 10 of 100 ')
    assert ' episodes and 1.6 of 60 min; ' in said
    assert 'candidate 90 % of 10, champion before 90 % of ' in said


def test_the_champion_of_all_steps_is_compared():
    world = World(Canary(plan(), MINIMUM)).start()
    for step in range(3):
        world.end('candidate', 80)
        world.end('champion', 70, 10, aborted=5, unreported=3, open=2)
        world.wait(100)
        assert world.canary.step == step + 1, world.canary.text
    watch, arm = world.canary.record.watch, world.seen.champion.arm
    assert watch.champion_counts(arm) == (210, 60)
    assert arm.open == 0
    # a late outcome of the champion no longer counts
    world.verdicts('champion', 'success')
    world.poll()
    assert watch.champion_counts(world.seen.champion.arm) == (210, 60)


def test_one_that_turns_out_worse_is_rolled_back():
    world = promoted()
    world.end('candidate', 2, 18)
    assert whats(world.poll()) == ['rolled_back']
    assert (world.canary.state, world.canary.share_percent) == (CanaryPhase.ROLLED_BACK, 0)
    said = world.canary.text
    assert said.startswith(
        'rolled back: since its promotion the candidate is worse by more than 20 percentage '
        'points: candidate 10 % of 20, champion before 90 % of '
    )
    assert said.endswith('wrong in at most 5 % of promotions')


@pytest.mark.parametrize('way', ['failure', 'aborted'])
def test_every_end_without_success_counts_against_it(way):
    world = promoted()
    world.end('candidate', **{way: 12})
    assert whats(world.poll()) == ['rolled_back']


@pytest.mark.parametrize('way', ['open', 'unreported', 'moved'])
def test_an_outcome_that_is_not_known_counts_for_it(way):
    world = promoted()
    world.end('candidate', **{way: 60})
    assert world.poll() == ()


def test_success_before_the_promotion_does_not_cover_failures_after_it():
    world = started(rules=MINIMUM)
    while world.canary.state is not CanaryPhase.PROMOTED:
        world.end('candidate', 400)
        world.end('champion', 380, 20)
        world.wait(100)
    world.end('candidate', 0, 12)
    assert whats(world.poll()) == ['rolled_back']


def test_one_that_is_as_good_passes_and_is_watched_no_longer():
    world, events = promoted(), []
    for _ in range(10):
        world.end('candidate', 18, 2)
        events += world.poll(after_s=20)
    assert not events
    assert world.canary.text.startswith(
        'promoted: all new episodes to the candidate; watched for 100 of 100 episodes and'
    )
    events = [event for _ in range(80) for event in world.poll(after_s=50)]
    assert whats(tuple(events)) == ['watched']
    assert 'nothing is worse: watched for 100 of 100 episodes and 60 of 60 min' in events[0].why
    assert not world.canary.is_watching
    # from now on it is the operator's alone
    world.end('candidate', 0, 300)
    world.grow('candidate', replies=10_000, failed_replies=10_000)
    world.wait(1000)
    assert world.canary.state is CanaryPhase.PROMOTED


@pytest.mark.parametrize(
    ('grown', 'said'),
    [
        ({'replies': 300, 'failed_replies': 300}, 'requests of the candidate failed'),
        ({'commands': 6000, 'trips': 6000}, 'were changed by the safety cage'),
        ({'commands': 6000, 'fallbacks': 6000}, 'came from the fallback ladder'),
        ({'halts': 12}, 'robots halted 12 times in 12 episodes'),
    ],
)
def test_guards_go_on(grown, said):
    world = promoted()
    world.end('candidate', 12)
    world.poll()
    world.grow('candidate', **grown)
    assert whats(world.poll()) == ['rolled_back']
    assert said in world.canary.text


def test_guards_compare_with_the_champion_of_the_last_step():
    """The champion fails in 4 % of its replies: 5 % of the candidate's are no reason."""
    world = World(Canary(plan(), MINIMUM)).start()
    while world.canary.state is not CanaryPhase.PROMOTED:
        world.end('candidate', 36, 4)
        world.end('champion', 90, 10)
        world.grow('champion', failed_replies=80)
        world.wait(100)
    for _ in range(40):
        world.grow('candidate', replies=1000, failed_replies=50)
        world.poll()
    assert world.canary.state is CanaryPhase.PROMOTED
    world.change('candidate', latency_ms_p95=90.0)
    world.poll()
    assert world.canary.state is CanaryPhase.PROMOTED
    world.change('candidate', latency_ms_p95=110.0)
    assert whats(world.poll()) == ['rolled_back']
    assert 'latency p95 110 ms, champion 50 ms' in world.canary.text


def test_a_server_that_is_away_is_no_reason_for_a_verdict():
    """The router moves its episodes meanwhile."""
    world = promoted()
    world.change('candidate', healthy=False, health_text='restarts')
    world.wait(100)
    assert world.canary.state is CanaryPhase.PROMOTED
    assert world.canary.is_watching


def test_a_robot_that_halts_once_is_reported():
    world = promoted()
    world.grow('candidate', halts=1)
    world.poll()
    assert world.canary.state is CanaryPhase.PROMOTED
    assert 'halted once (cage latched or stop service called) and waits' in world.canary.text


def test_without_a_champion_it_goes_on_until_that_one_is_back():
    world = promoted()
    world.change('champion', healthy=False, health_text='no replies')
    world.end('candidate', 0, 20)
    assert world.poll() == ()
    assert (world.canary.state, world.canary.share_percent) == (CanaryPhase.PROMOTED, 100)
    assert world.canary.text.endswith(
        'It continues, because the slot of the champion is not healthy: no replies. As soon as '
        'the champion is back it takes over: start its policy server'
    )
    # neither time nor good episodes take the finding back
    world.end('candidate', 400)
    world.wait(4000)
    assert world.canary.state is CanaryPhase.PROMOTED
    assert world.canary.is_watching
    world.change('champion', healthy=True)
    assert whats(world.poll()) == ['rolled_back']


def test_what_a_guard_has_found_stays_though_it_measures_it_no_more():
    world = promoted()
    world.change('champion', healthy=False)
    world.grow('candidate', replies=200, failed_replies=200)
    world.poll()
    assert 'requests of the candidate failed' in world.canary.text
    for _ in range(20):
        world.grow('candidate', replies=2000)
        world.poll()
    assert 'requests of the candidate failed' in world.canary.text
    later = Canary(plan(), MINIMUM)
    later.restore(json.loads(json.dumps(world.canary.snapshot())))
    assert later.record.watch.tripped == world.canary.record.watch.tripped != ''
    world.change('champion', healthy=True)
    assert whats(world.poll()) == ['rolled_back']


def test_halts_of_episodes_from_before_the_promotion_roll_nothing_back():
    world = promoted()
    world.grow('candidate', halts=2)
    world.poll()
    assert world.canary.state is CanaryPhase.PROMOTED
    assert 'halted once' in world.canary.text


def test_another_name_of_the_champion_is_the_champion():
    world = promoted()
    world.change('champion', policy='renamed@2')
    world.poll()
    assert world.canary.is_watching


@pytest.mark.parametrize('policy', ['new@1', 'third@3'])
def test_another_policy_in_slot_a_neither_ends_nor_passes_the_watch(policy):
    world = promoted()
    world.change('champion', policy=policy)
    world.end('candidate', 200)
    world.wait(4000)
    assert world.canary.is_watching
    said = f'It does not end while slot a serves {policy} instead of old@2: put old@2 back'
    assert said in world.canary.text
    world.change('champion', policy='old@2')
    assert whats(world.poll()) == ['watched']


def test_a_finding_is_kept_while_slot_a_serves_the_policy_of_its_start():
    world = promoted()
    world.change('champion', policy='start@0')
    world.end('candidate', 0, 40)
    assert world.poll() == ()
    assert world.canary.is_watching
    said = world.canary.text
    assert 'It continues, because slot a serves start@0 instead of old@2. As soon as' in said
    assert 'put old@2 back (`lerobot-serve swap`)' in said
    world.change('champion', policy='old@2')
    assert whats(world.poll()) == ['rolled_back']


def test_removing_the_plan_ends_the_watch():
    world = promoted()
    world.canary.change_plan(None, MINIMUM)
    world.end('candidate', 0, 60)
    assert world.poll() == ()
    assert world.canary.state is CanaryPhase.OFF


def test_an_operator_rolls_back_while_it_is_watched():
    world = promoted()
    world.canary.rollback('smells')
    assert world.canary.state is CanaryPhase.ROLLED_BACK
    assert not world.canary.is_watching
    world.canary.resume('no, it does not')
    world.wait(100)
    assert world.canary.state is CanaryPhase.RUNNING
    # a later promotion begins a new watch
    assert world.canary.record.watch == WatchRecord()


def test_the_minimum_may_change_while_it_is_watched():
    world = promoted()
    now = replace(MINIMUM, canary_watch_episodes=0, canary_watch_hours=0.0)
    world.canary.change_plan(world.canary.plan, now)
    assert whats(world.poll()) == ['watched']


def test_a_restart_of_the_router_goes_on_watching():
    world = promoted()
    world.end('candidate', 3, 8, open=1)
    world.poll(after_s=30)
    before = world.canary
    assert 0 < before.record.comparison.worse < MINIMUM.rollback_level(1)
    canary = Canary(plan(), MINIMUM)
    assert canary.restore(json.loads(json.dumps(before.snapshot()))) == ''
    assert canary.record.watch == before.record.watch
    later = World(canary)
    later.champion = world.champion
    later.poll()
    assert canary.is_watching
    assert 'watched for 11 of 100 episodes' in canary.text
    later.end('candidate', 0, 12)
    assert whats(later.poll()) == ['rolled_back']


def test_slots_that_are_not_found_yet_after_a_restart_end_nothing():
    world = promoted()
    canary = Canary(plan(), MINIMUM)
    canary.restore(world.canary.snapshot())
    later = World(canary)
    later.champion = later.candidate = SlotFacts()
    later.wait(100)
    assert canary.is_watching
    assert canary.state is CanaryPhase.PROMOTED


def test_the_snapshot_of_an_older_router_is_not_watched():
    snapshot = promoted().canary.snapshot()
    del snapshot['watch']
    canary = Canary(plan(), MINIMUM)
    assert canary.restore(snapshot) == ''
    assert canary.state is CanaryPhase.PROMOTED
    assert not canary.is_watching
