# SPDX-License-Identifier: Apache-2.0
"""Robots of the candidate that come to rest until a person acts."""

from __future__ import annotations

import pytest
from support.router.canary_rig import started, whats

from lerobot_serve.router.canary.facts import ArmCounts, Facts, SlotFacts
from lerobot_serve.router.canary.guards.halts import (
    halt_shares,
    halt_text,
    halt_verdict,
    HaltVerdict,
)
from lerobot_serve.router.canary.states import CanaryPhase
from lerobot_serve.router.parameters import RouterParameters

LIMITS = RouterParameters()
V = HaltVerdict


def facts(candidate: tuple[int, int], champion: tuple[int, int]) -> Facts:
    """Return facts with these halts and episodes of each arm."""
    return Facts(*(SlotFacts(halts=n, arm=ArmCounts(begun=of)) for n, of in (candidate, champion)))


def verdict(seen: Facts, limits: RouterParameters = LIMITS) -> HaltVerdict:
    return halt_verdict(halt_shares(seen, limits), limits)


@pytest.mark.parametrize(
    ('candidate', 'champion', 'wanted'),
    [
        ((0, 0), (0, 0), V.PASS),
        ((0, 50), (3, 50), V.PASS),
        # one robot that halts may have a reason of its own
        ((1, 1), (0, 100), V.REPORT),
        # all robots of the candidate, and there may be no more than two
        ((2, 2), (0, 0), V.ROLL_BACK),
        ((2, 20), (0, 60), V.ROLL_BACK),
        # at the limit of 5 %
        ((2, 40), (0, 60), V.REPORT),
        ((5, 1000), (0, 60), V.REPORT),
        # as the champion does
        ((4, 20), (10, 100), V.REPORT),
        ((5, 20), (10, 100), V.ROLL_BACK),
        # at most ten points above it
        ((10, 20), (40, 100), V.REPORT),
        ((11, 20), (40, 100), V.ROLL_BACK),
        # of episodes that began before the step
        ((3, 0), (0, 0), V.ROLL_BACK),
    ],
)
def test_halts_of_the_candidate_count_against_those_of_the_champion(candidate, champion, wanted):
    seen = facts(candidate, champion)
    assert verdict(seen) is wanted
    for each in (V.REPORT, V.ROLL_BACK):
        assert bool(halt_text(seen, LIMITS, each)) is (each is wanted)


def test_a_limit_of_zero_only_reports_and_one_robot_is_enough_if_it_is_said_so():
    assert (
        verdict(facts((9, 9), (0, 9)), RouterParameters(canary_max_halted_percent=0.0)) is V.REPORT
    )
    assert verdict(facts((1, 1), (0, 9)), RouterParameters(canary_minimum_halts=1)) is V.ROLL_BACK


def test_a_candidate_whose_robots_all_halt_is_rolled_back_though_nothing_else_is_counted():
    world = started()
    world.end('candidate', open=1)
    world.grow('candidate', halts=1)
    world.poll()
    assert world.canary.state is CanaryPhase.RUNNING
    assert 'a robot of the candidate halted once' in world.canary.text
    world.wait(3600)
    assert '`lerobot-serve robots` names it' in world.canary.text
    world.end('candidate', open=1)
    world.grow('candidate', halts=1)
    assert whats(world.poll()) == ['rolled_back']
    assert 'robots halted 2 times in 2 episodes of the candidate' in world.canary.text
    assert '100 %, limit 5 % (champion 0 %)' in world.canary.text


def test_halts_of_both_policies_roll_neither_back():
    world = started()
    for arm in ('candidate', 'champion'):
        world.end(arm, open=3)
        world.grow(arm, halts=3)
    world.wait(100)
    assert world.canary.state is CanaryPhase.RUNNING
