# SPDX-License-Identifier: Apache-2.0
"""Whom to ask next: the order, the waits, and the way back to the preferred server."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
import pytest

from lerobot_serve.contract.schema import Refusal
from lerobot_serve.session.failover import (
    PERMANENT_REFUSALS,
    ServerSelection,
    TEMPORARY_REFUSALS,
)

ABC = ('/a', '/b', '/c')


def servers(names=ABC, random=lambda: 0.5, first_s=0.5, max_s=10.0) -> ServerSelection:
    return ServerSelection(names, first_backoff_s=first_s, max_backoff_s=max_s, random=random)


def fail(asked: ServerSelection, times: int) -> list[tuple[str, float]]:
    """Return who is asked after each failure, and after which wait."""
    seen = []
    for _ in range(times):
        wait_s = asked.mark_failed('gone')
        seen.append((asked.current, wait_s))
    return seen


def test_each_refusal_is_for_later_or_for_good():
    assert {
        Refusal.CAPACITY,
        Refusal.NAME_IN_USE,
        Refusal.NOT_READY,
        Refusal.DRAINING,
        Refusal.EXCLUSIVE_IN_USE,
        Refusal.UNREACHABLE,
    } == TEMPORARY_REFUSALS
    assert set(Refusal) - TEMPORARY_REFUSALS - PERMANENT_REFUSALS == {Refusal.OK}
    assert not TEMPORARY_REFUSALS & PERMANENT_REFUSALS


def test_the_wait_is_drawn_from_all_of_its_length():
    draws = iter([0.0, 0.999, 0.5])
    waits = [wait_s for _, wait_s in fail(servers(('/a',), lambda: next(draws)), 3)]
    assert waits == pytest.approx([0.0, 0.999, 1.0])


def test_the_reasons_are_told_in_the_order_of_preference_until_one_answers():
    asked = servers()
    assert asked.failure_text == ''
    asked.mark_failed('no answer')
    asked.mark_failed('full')
    asked.mark_failed('draining')
    asked.mark_failed('still no answer')
    assert asked.failure_text == '/a: still no answer; /b: full; /c: draining'
    before = asked.failures
    asked.mark_succeeded()
    assert asked.failure_text == '/a: still no answer; /c: draining'
    # a reader in another thread keeps what it has
    assert set(before) == {'/a', '/b', '/c'}
    fail(asked, 2)
    asked.mark_succeeded()
    asked.mark_failed('gone again')
    assert asked.failure_text == '/a: gone again; /b: gone; /c: gone'


@given(
    st.integers(1, 4),
    st.lists(st.sampled_from(['fail', 'refuse', 'refuse', 'answer', 'home']), max_size=60),
    st.sets(st.sampled_from(['/0', '/1', '/2', '/3'])),
)
def test_any_history_keeps_the_order(count, script, away):
    names = tuple(f'/{i}' for i in range(count))
    asked = servers(names, lambda: 1.0)
    # who failed since the last answer or wait, and the waits since the last answer
    round_, waits, are_refused = [], 0, True
    for verb in script:
        before = asked.current
        if verb == 'answer':
            asked.mark_succeeded()
            round_, waits, are_refused = [], 0, True
            assert asked.current == before
            assert before not in asked.failures
        elif verb == 'home':
            moved = asked.return_to_better(lambda name: name not in away)
            better = names[: names.index(before)]
            there = [name for name in better if name not in round_ and name not in away]
            assert moved == bool(there)
            assert asked.current == (there[0] if there else before)
        else:
            wait_s = asked.mark_failed('x', is_permanent=verb == 'refuse')
            round_.append(before)
            are_refused &= verb == 'refuse'
            assert asked.is_refused_by_all == (are_refused and len(round_) == count)
            if len(round_) == count:
                assert wait_s == min(0.5 * 2**waits, 10.0)
                assert asked.current == '/0'
                round_, waits, are_refused = [], waits + 1, True
            else:
                assert wait_s == 0.0
                place = names.index(before)
                turn = [names[(place + i) % count] for i in range(1, count + 1)]
                assert asked.current == next(name for name in turn if name not in round_)
        assert len(set(round_)) == len(round_)
