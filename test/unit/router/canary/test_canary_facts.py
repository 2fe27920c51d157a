# SPDX-License-Identifier: Apache-2.0
"""Counters that grow, begin anew, and are remembered."""

from __future__ import annotations

from copy import deepcopy

from hypothesis import given
from hypothesis import strategies as st

from lerobot_serve.router.canary.facts import (
    ArmCounts,
    counter_growth,
    CounterGrowth,
    COUNTERS,
    counters,
    Facts,
    SlotFacts,
)

SLOT = st.builds(SlotFacts, **{name: st.integers(0, 1000) for name in COUNTERS})
ARMS = {'candidate': ArmCounts(7, 3), 'champion': ArmCounts()}
MORE = st.dictionaries(st.sampled_from(COUNTERS), st.integers(0, 50))


def grown(slot: SlotFacts, more: dict[str, int]) -> SlotFacts:
    return SlotFacts(**{name: getattr(slot, name) + more.get(name, 0) for name in COUNTERS})


@given(SLOT, st.lists(MORE, max_size=5))
def test_what_was_counted_before_the_first_look_does_not_count(slot, steps):
    growth, now = CounterGrowth(), slot
    growth.add(Facts(now, now))
    for more in steps:
        now = grown(now, more)
        growth.add(Facts(now, slot))
    since = growth.since_begin(Facts(now, slot), ARMS)
    assert counters(since.candidate) == counter_growth(slot, now)
    assert since.candidate.arm == ARMS['candidate']
    assert set(counters(since.champion).values()) == {0}


@given(SLOT, MORE, SLOT)
def test_counters_that_fell_began_anew_at_zero(slot, more, small):
    before = grown(grown(small, more), {'replies': 1})
    assert counter_growth(before, small) == counters(small)
    growth = CounterGrowth()
    growth.add(Facts(slot, slot))
    growth.add(Facts(grown(slot, more), slot))
    assert growth.since_begin(Facts(slot, slot), ARMS).candidate.replies == more.get('replies', 0)


@given(SLOT, MORE, MORE)
def test_what_is_skipped_or_was_before_the_restart_does_not_count(slot, skipped, more):
    growth = CounterGrowth()
    growth.add(Facts(slot, slot))
    later = grown(slot, skipped)
    growth.skip(Facts(later, slot))
    growth.add(Facts(grown(later, more), slot))
    since = growth.since_begin(Facts(slot, slot), ARMS).candidate
    assert counters(since) == {name: more.get(name, 0) for name in COUNTERS}
    growth.restart()
    assert set(counters(growth.since_begin(Facts(slot, slot), ARMS).candidate).values()) == {0}


@given(SLOT, MORE, MORE)
def test_after_a_restart_it_goes_on_from_what_it_remembers(slot, more, later):
    first = CounterGrowth()
    first.add(Facts(slot, slot))
    first.add(Facts(grown(slot, more), slot))
    # the router's own counters begin at 0 again, or go on: either way only growth counts
    for begin in (SlotFacts(), grown(slot, more)):
        again = CounterGrowth()
        again.arms = deepcopy(first.arms)
        again.add(Facts(begin, begin))
        again.add(Facts(grown(begin, later), begin))
        since = again.since_begin(Facts(slot, slot), ARMS).candidate
        assert counters(since) == {
            name: more.get(name, 0) + later.get(name, 0) for name in COUNTERS
        }
