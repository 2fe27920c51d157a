# SPDX-License-Identifier: Apache-2.0
"""Whatever arrives, each request ends once and no more is kept than allowed."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
from support.router.joining_rig import (
    AGE_NS,
    begin,
    CAPACITY,
    draw,
    execute,
    joiner,
    ROWS,
    take,
    VALUES,
)
from support.router.shadow_rig import key, run, S

from lerobot_serve.router.shadow.sample_joiner import NO_ROWS, RequestKey, Sample


def test_the_oldest_request_makes_room():
    join = joiner(values_limit=10**9)
    for seq in range(1, CAPACITY + 4):
        begin(join, key(seq), now_ns=seq)
        execute(join, key(seq, 'robot_2'))
    assert len(join) == CAPACITY
    assert join.drops == {'shadow_overflow': 3}
    assert take(join, 10 * AGE_NS) == []
    assert join.drops == {'shadow_overflow': 3, 'shadow_unmatched': CAPACITY}


@pytest.mark.parametrize('kind', ['live', 'shadow', 'second', 'rows'])
def test_no_message_is_too_large(kind):
    join = joiner()
    begin(join, key(1))
    begin(join, key(2))
    huge = np.zeros((VALUES, 2), np.float32)
    if kind == 'rows':
        execute(join, key(2), 0, huge)
    else:
        begin(join, key(3), without='live' if kind == 'live' else 'shadow')
        getattr(join, kind)(key(3), draw(huge))
    assert join.size <= VALUES + 3 * CAPACITY
    assert join.drops['shadow_overflow'] >= 1


def test_what_nobody_takes_makes_no_room():
    join = joiner()
    for seq in range(1, 5 * CAPACITY):
        begin(join, key(seq))
        execute(join, key(seq))
    whole = take(join)
    assert len(whole) <= CAPACITY
    assert len(whole) + join.drops['shadow_overflow'] + len(join) == 5 * CAPACITY - 1


def test_what_nobody_takes_does_not_grow_beyond_its_numbers_either():
    join = joiner(capacity=1000)
    for seq in range(1, 100):
        begin(join, key(seq))
        execute(join, key(seq))
    whole = take(join)
    assert 1 < len(whole) <= VALUES / (3 * ROWS.size)
    assert take(join, AGE_NS) == [99]


events = st.tuples(
    st.sampled_from(['request', 'live', 'shadow', 'second', 'drop', 'executed', 'take']),
    st.integers(0, 2),
    st.integers(0, 12),
    st.integers(0, 60),
)


@given(st.lists(events, max_size=120))
@settings(max_examples=150)
def test_of_any_flood_each_request_ends_once_and_no_more_is_kept_than_allowed(script):
    join, now_ns = joiner(), 0
    begun: set[RequestKey] = set()
    whole: list[Sample] = []
    for what, robot, seq, size in script:
        now_ns += S
        of = key(seq, f'robot_{robot}')
        rows = np.zeros((size % 7, size % 3), np.float32)
        if what in ('request', 'live', 'shadow', 'drop'):
            begun.add(of)
        if what == 'request':
            join.request(of, 'e', now_ns)
        elif what in ('live', 'shadow', 'second'):
            getattr(join, what)(of, draw(rows, now_ns=now_ns))
        elif what == 'drop':
            join.drop(of, 'shadow_failed', now_ns)
        elif what == 'executed' and rows.size:
            join.executed(of.client_id, run(of, size, rows), NO_ROWS)
        elif what == 'take':
            whole += join.take(now_ns)
        assert join.size <= 2 * VALUES + 4 * CAPACITY
    whole += join.take(now_ns + AGE_NS)
    assert len(join) == 0
    assert join.size <= CAPACITY
    reasons = ('unanswered', 'unmatched', 'overflow', 'failed', 'stray', 'without_live')
    dropped = sum(join.drops[f'shadow_{reason}'] for reason in reasons)
    # a request that was forgotten for long enough may begin anew
    assert len(whole) + dropped >= len(begun)
    if len(begun) <= CAPACITY:
        assert len(whole) + dropped == len(begun)
        assert len({sample.key for sample in whole}) == len(whole)
    for sample in whole:
        assert sample.live and sample.shadow and sample.commanded
