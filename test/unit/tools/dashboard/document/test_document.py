# SPDX-License-Identifier: Apache-2.0
"""The document of the page: patches, silent sources, and the rows of learners in every phase."""

from __future__ import annotations

import copy
import itertools
import json
import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
import pytest
from support.dashboard.merge_patch import applied
from support.learner import shown_learner
from support.tools.operator_states import changed, learner_of

from lerobot_serve.contract.records import DropCount
from lerobot_serve.tools.dashboard.document.fleet_document import (
    difference,
    FORGET_S,
    Source,
    TEXT_LIMIT,
    without_nulls,
)
from lerobot_serve.tools.dashboard.document.rows import learner_row
from lerobot_serve.tools.operate.learners import LEARNER_PHASES

KEYS = st.sampled_from(['a', 'b', 'c', '/robot_1/edge_controller', '<script>', '\n'])
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 2), st.floats(-2, 2), st.text(max_size=3)
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=4)),
    max_leaves=12,
)
DOCUMENTS = st.dictionaries(KEYS, VALUES, max_size=5).map(without_nulls)


def as_sent(document: Any) -> str:
    """Return the JSON text, which tells 1 from true."""
    return json.dumps(document, sort_keys=True)


@given(DOCUMENTS, DOCUMENTS)
def test_a_patch_applied_to_the_old_document_gives_the_new_one(old, new):
    before = copy.deepcopy((old, new))
    patch = json.loads(json.dumps(difference(old, new)))
    assert as_sent(applied(old, patch)) == as_sent(new)
    assert (old, new) == before


@given(st.lists(DOCUMENTS, min_size=2, max_size=6))
def test_a_chain_of_patches_gives_the_last_document(documents):
    shown: Any = documents[0]
    for old, new in itertools.pairwise(documents):
        shown = applied(shown, difference(old, new))
    assert as_sent(shown) == as_sent(documents[-1])


@given(DOCUMENTS)
def test_equal_documents_have_no_difference(document):
    assert difference(document, copy.deepcopy(document)) == {}


@given(DOCUMENTS)
def test_a_document_has_no_null_outside_of_arrays(document):
    def objects(value: Any) -> Any:
        if isinstance(value, dict):
            yield value
            for inner in value.values():
                yield from objects(inner)

    assert all(None not in each.values() for each in objects(document))


# the examples of RFC 7396, appendix A, whose target is an object
@pytest.mark.parametrize(
    ('target', 'patch', 'result'),
    [
        ({'a': 'b'}, {'a': 'c'}, {'a': 'c'}),
        ({'a': 'b'}, {'b': 'c'}, {'a': 'b', 'b': 'c'}),
        ({'a': 'b'}, {'a': None}, {}),
        ({'a': 'b', 'b': 'c'}, {'a': None}, {'b': 'c'}),
        ({'a': ['b']}, {'a': 'c'}, {'a': 'c'}),
        ({'a': 'c'}, {'a': ['b']}, {'a': ['b']}),
        ({'a': {'b': 'c'}}, {'a': {'b': 'd', 'c': None}}, {'a': {'b': 'd'}}),
        ({'a': [{'b': 'c'}]}, {'a': [1]}, {'a': [1]}),
        ({'e': None}, {'a': 1}, {'e': None, 'a': 1}),
        ({}, {'a': {'bb': {'ccc': None}}}, {'a': {'bb': {}}}),
        (['a', 'b'], {'a': 'b', 'c': None}, {'a': 'b'}),
        ({'a': 'foo'}, 'bar', 'bar'),
    ],
)
def test_patches_are_applied_as_in_rfc_7396(target, patch, result):
    assert applied(target, patch) == result


def test_what_is_the_same_object_is_not_looked_into():
    class Unreadable(dict):  # type: ignore[type-arg]
        def items(self) -> Any:
            raise AssertionError('looked into')

    same = Unreadable(a=1)
    assert difference({'row': same, 'n': 1}, {'row': same, 'n': 2}) == {'n': 2}


def heard_every(period_s: float, count: int = 10) -> Source:
    source = Source()
    for number in range(count):
        source.on_message(number * period_s)
    return source


@pytest.mark.parametrize(
    ('period_s', 'limit_s'), [(0.2, 2.0), (0.5, 2.0), (1.0, 3.0), (5.0, 15.0), (60.0, 180.0)]
)
def test_a_source_is_silent_after_three_periods_and_two_seconds_at_least(period_s, limit_s):
    source = heard_every(period_s)
    last_s = 9 * period_s
    assert source.limit_s == pytest.approx(limit_s)
    assert not source.is_silent(last_s + limit_s - 0.01, publishers=1)
    assert source.is_silent(last_s + limit_s + 0.01, publishers=1)


def test_without_a_publisher_it_is_silent_at_once():
    source = heard_every(1.0)
    assert source.is_silent(9.0, publishers=0)
    assert not source.is_silent(9.0, publishers=2)


def test_what_was_never_heard_of_is_not_silent():
    assert not Source().is_silent(1e9, publishers=0)


def test_a_latched_state_of_a_process_that_hangs_becomes_silent():
    source = Source()
    source.on_message(0.0)
    assert not source.is_silent(1.9, 1) and source.is_silent(2.1, 1)


def test_one_long_gap_is_not_usual():
    source = heard_every(0.2)
    source.on_message(100.0)
    assert source.limit_s == 2.0
    assert not source.is_silent(101.0, 1) and source.is_silent(102.1, 1)


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=30), st.floats(0.001, 50))
def test_a_message_ends_every_silence(gaps, later_s):
    source, now_s = Source(), 0.0
    for gap_s in gaps:
        now_s += gap_s
        source.on_message(now_s)
        assert not source.is_silent(now_s, 1)
    limit_s = source.limit_s
    assert source.is_silent(now_s + later_s, 1) == (now_s + later_s - now_s > limit_s)


@pytest.mark.parametrize(
    ('publishers', 'age_s', 'is_gone'),
    [
        (0, FORGET_S + 1, True),
        (0, FORGET_S - 1, False),
        # it hangs: whoever looks for it must find it
        (1, FORGET_S + 1, False),
        (1, FORGET_S - 1, False),
    ],
)
def test_a_source_leaves_after_ten_minutes_without_a_publisher(publishers, age_s, is_gone):
    assert heard_every(1.0).is_gone(9.0 + age_s, publishers) is is_gone


def test_a_source_that_was_never_heard_of_leaves_with_its_publisher():
    assert Source().is_gone(0.0, 0) and not Source().is_gone(0.0, 1)


TRAINS = changed(
    shown_learner.TRAINS,
    progress=0.42049,
    loss=0.0312445,
    remaining_s=750.6,
    dropped=(DropCount('other_host', 12),),
)
NODE = TRAINS.node


def test_all_that_a_learner_shows_is_in_its_row_with_rounded_numbers():
    assert learner_row(TRAINS) == {
        'learner': '',
        'state': 'TRAINING',
        'text': 'round 3: trains',
        'round': 3,
        'is_running': True,
        'parent': 'act@1',
        'latest': 'act@2',
        'episodes': 120,
        'episodes_new': 17,
        'episodes_wanted': 50,
        'progress': 0.42,
        'loss': 0.0312,
        'has_diverged': False,
        'remaining_s': 751,
        'dropped': {'other_host': 12},
    }


@pytest.mark.parametrize('phase', LEARNER_PHASES)
def test_each_phase_says_whether_a_round_runs(phase):
    learner = learner_of(NODE, phase)
    row = learner_row(learner)
    assert (row['state'], row['is_running']) == (phase, learner.is_running)


def test_what_is_not_known_is_absent():
    row = learner_row(learner_of(NODE, 'TRAINING'))
    assert not {'progress', 'loss', 'remaining_s'} & set(row)
    assert learner_row(learner_of(NODE, 'TRAINING', loss=math.inf))['has_diverged']


def test_hostile_texts_and_numbers_are_bounded_and_valid_json():
    long = '<script>' * TEXT_LIMIT
    hostile = learner_of(
        NODE,
        'TRAINING',
        text=long,
        parent=long,
        latest=long,
        loss=3.4e38,
        dropped=(DropCount(long, 2**64 - 1),),
    )
    row = learner_row(hostile)
    json.dumps(row, allow_nan=False)
    # no number that a person reads
    assert 'loss' not in row
    (reason,) = row['dropped']
    assert {len(row[each]) for each in ('text', 'parent', 'latest')} == {TEXT_LIMIT}
    assert len(reason) == TEXT_LIMIT
