# SPDX-License-Identifier: Apache-2.0
"""Merge patches: applying the difference of two documents to the first one gives the second."""

from __future__ import annotations

import copy
import itertools
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
import pytest
from support.dashboard.merge_patch import applied

from lerobot_serve.tools.dashboard.document.merge_patch import (
    difference,
    without_nulls,
)

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
