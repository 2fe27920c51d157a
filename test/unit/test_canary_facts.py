"""Counters that grow, begin anew, and are remembered."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
import pytest

from lerobot_serve.router.canary.facts import (
    COUNTERS,
    counters,
    difference,
    Facts,
    Growth,
    OUTCOMES,
    SlotFacts,
    TRAFFIC,
)

SLOT = st.builds(SlotFacts, **{name: st.integers(0, 1000) for name in COUNTERS})
MORE = st.dictionaries(st.sampled_from(COUNTERS), st.integers(0, 50))


def grown(slot: SlotFacts, more: dict[str, int]) -> SlotFacts:
    return SlotFacts(**{name: getattr(slot, name) + more.get(name, 0) for name in COUNTERS})


@given(SLOT, st.lists(MORE, max_size=5))
def test_what_was_counted_before_the_first_look_does_not_count(slot, steps):
    growth, now = Growth(), slot
    growth.add(Facts(now, now), settled=True)
    for more in steps:
        now = grown(now, more)
        growth.add(Facts(now, slot), settled=True)
    since = growth.since_begin(Facts(now, slot))
    assert counters(since.candidate) == difference(slot, now)
    assert set(counters(since.champion).values()) == {0}


@given(SLOT, MORE, SLOT)
def test_counters_that_fell_began_anew_at_zero(slot, more, small):
    before = grown(grown(small, more), {'answers': 1})
    assert difference(before, small) == counters(small)
    growth = Growth()
    growth.add(Facts(slot, slot), settled=True)
    growth.add(Facts(grown(slot, more), slot), settled=True)
    assert growth.since_begin(Facts(slot, slot)).candidate.answers == more.get('answers', 0)


@given(SLOT, MORE)
def test_no_outcome_counts_before_it_has_settled(slot, more):
    growth = Growth()
    growth.add(Facts(slot, slot), settled=False)
    growth.add(Facts(grown(slot, more), slot), settled=False)
    since = growth.since_begin(Facts(slot, slot)).candidate
    assert [getattr(since, name) for name in OUTCOMES] == [0] * len(OUTCOMES)
    assert [getattr(since, name) for name in TRAFFIC] == [more.get(name, 0) for name in TRAFFIC]


@given(SLOT, MORE, MORE)
def test_what_is_skipped_or_was_before_the_restart_does_not_count(slot, skipped, more):
    growth = Growth()
    growth.add(Facts(slot, slot), settled=True)
    later = grown(slot, skipped)
    growth.skip(Facts(later, slot))
    growth.add(Facts(grown(later, more), slot), settled=True)
    since = growth.since_begin(Facts(slot, slot)).candidate
    assert counters(since) == {name: more.get(name, 0) for name in COUNTERS}
    growth.restart()
    assert set(counters(growth.since_begin(Facts(slot, slot)).candidate).values()) == {0}


@given(SLOT, MORE, MORE)
def test_after_a_restart_it_goes_on_from_what_it_remembers(slot, more, later):
    first = Growth()
    first.add(Facts(slot, slot), settled=True)
    first.add(Facts(grown(slot, more), slot), settled=True)
    # the router's own counters begin at 0 again, or go on: either way only growth counts
    for begin in (SlotFacts(), grown(slot, more)):
        again = Growth()
        again.restore(first.memory())
        again.add(Facts(begin, begin), settled=True)
        again.add(Facts(grown(begin, later), begin), settled=True)
        since = again.since_begin(Facts(slot, slot)).candidate
        assert counters(since) == {
            name: more.get(name, 0) + later.get(name, 0) for name in COUNTERS
        }


@pytest.mark.parametrize('value', [-1, 10**16, 1.0, True, None, '1'])
def test_a_count_that_is_none_is_refused(value):
    growth = Growth()
    memory = growth.memory()
    memory['champion']['answers'] = value
    with pytest.raises(ValueError, match='answers'):
        growth.restore(memory)
