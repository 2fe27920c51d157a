# SPDX-License-Identifier: Apache-2.0
"""Alarms: as soon after a long good time as after none, quiet at their bound, fair to both."""

from __future__ import annotations

import numpy as np
import pytest

from lerobot_serve.router.canary.facts import COUNTERS, Facts, SlotFacts
from lerobot_serve.router.canary.guards.alarms import GUARDED_SHARES, ShareAlarms
from lerobot_serve.router.canary.guards.rules import (
    rollback_reason,
    update_alarms,
)
from lerobot_serve.router.parameters import RouterParameters

LIMITS = RouterParameters()
FACTS = Facts(SlotFacts(), SlotFacts())


class Guarded:
    """Both slots' replies and commands, and what the guards say of them."""

    def __init__(self) -> None:
        self.alarms = ShareAlarms()

    def see(self, candidate: dict[str, int], champion: dict[str, int] | None = None) -> str:
        grown = {
            'candidate': dict.fromkeys(COUNTERS, 0) | candidate,
            'champion': dict.fromkeys(COUNTERS, 0) | (champion or {}),
        }
        update_alarms(self.alarms, grown, LIMITS)
        return rollback_reason(FACTS, self.alarms, LIMITS)


def delay(good: int, share: float, kind: str, total: str, step: int) -> int:
    """Return after how many counts the alarm sounds when so many good ones came before."""
    guarded, rng, seen = Guarded(), np.random.default_rng(3), 0
    assert guarded.see({total: good}) == ''
    while seen < 100_000:
        seen += step
        if guarded.see({total: step, kind: int(rng.binomial(step, share))}):
            return seen
    return seen


@pytest.mark.parametrize('good', [0, 10_000, 100_000, 1_000_000])
@pytest.mark.parametrize(
    ('share', 'kind', 'total', 'step', 'most'),
    [
        (1.0, 'failed_replies', 'replies', 1, 10),
        (0.3, 'failed_replies', 'replies', 1, 60),
        (0.05, 'failed_replies', 'replies', 1, 3000),
        (1.0, 'trips', 'commands', 300, 3000),
        (0.05, 'trips', 'commands', 300, 6000),
        (0.3, 'fallbacks', 'commands', 300, 9000),
    ],
)
def test_the_delay_does_not_grow_with_what_was_good_before(good, share, kind, total, step, most):
    assert delay(good, share, kind, total, step) <= most


@pytest.mark.parametrize(
    ('champion', 'candidate', 'trips'),
    [(0.04, 0.03, False), (0.04, 0.04, False), (0.04, 0.2, True), (0.0, 0.05, True)],
)
def test_failures_are_held_against_the_champions(champion, candidate, trips):
    rng, sounded = np.random.default_rng(0), 0
    for _ in range(20):
        guarded = Guarded()
        for _ in range(300):
            both = [
                {'replies': 20, 'failed_replies': int(rng.binomial(20, share))}
                for share in (candidate, champion)
            ]
            if guarded.see(*both):
                sounded += 1
                break
    assert sounded == (20 if trips else 0)


def test_an_outage_of_both_blames_neither():
    rng, guarded = np.random.default_rng(1), Guarded()
    for share in (0.001,) * 300 + (0.3,) * 50:
        both = [{'replies': 20, 'failed_replies': int(rng.binomial(20, share))} for _ in range(2)]
        assert guarded.see(*both) == ''


@pytest.mark.parametrize(
    ('kind', 'total', 'champion', 'bound'),
    [
        ('failed_replies', 'replies', 0.0, 0.02),
        ('failed_replies', 'replies', 0.04, 0.08),
        # after an outage twice the share would allow nearly everything
        ('failed_replies', 'replies', 0.394, 0.494),
        ('fallbacks', 'commands', 0.394, 0.494),
        ('trips', 'commands', 1.0, 1.0),
    ],
)
def test_a_limit_is_at_most_ten_points_above_the_champion(kind, total, champion, bound):
    guarded = Guarded()
    guarded.see({}, {total: 100_000, kind: round(100_000 * champion)})
    (share,) = [each for each in GUARDED_SHARES if each.events == kind]
    assert share.bound(guarded.alarms, LIMITS) == pytest.approx(bound)


@pytest.mark.slow
@pytest.mark.parametrize(
    ('kind', 'total', 'share', 'step', 'looks'),
    [
        ('failed_replies', 'replies', 0.02, 10, 5000),
        ('trips', 'commands', 0.01, 600, 1000),
        ('fallbacks', 'commands', 0.05, 600, 1000),
    ],
)
def test_false_alarms_at_the_limit_are_as_rare_as_stated(kind, total, share, step, looks):
    # docs/canary.md: at most 1 % over a million replies, or a thousand chunks of commands
    rng, sounded = np.random.default_rng(2), 0
    for _ in range(20):
        guarded = Guarded()
        counts = rng.binomial(step, share, size=looks)
        sounded += any(guarded.see({total: step, kind: int(count)}) for count in counts)
    assert sounded == 0


def test_commands_of_one_robot_that_follow_each_other_count_as_one_observation():
    # trips in bursts of 300 commands, 1 % of all: at the limit
    rng, sounded = np.random.default_rng(5), 0
    for _ in range(20):
        guarded = Guarded()
        bursts = rng.random(2000) < 0.01
        sounded += any(
            guarded.see({'commands': 300, 'trips': 300 if burst else 0}) for burst in bursts
        )
    assert sounded <= 1


def test_it_goes_on_from_what_it_remembers():
    first, again = ShareAlarms(), ShareAlarms()
    for _ in range(5):
        grown = {slot: dict.fromkeys(COUNTERS, 7) for slot in ('candidate', 'champion')}
        update_alarms(first, grown, LIMITS)
    again.restore(first.stored())
    assert again.stored() == first.stored()
    assert again.baselines == first.baselines
