# SPDX-License-Identifier: Apache-2.0
"""What a dataset holds, without a bag; test/ros/tools/dataset converts whole ones."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from lerobot_serve.tools.dataset.checking import _is_labelled
from lerobot_serve.tools.dataset.features import differences, SUCCESS, to_millimetres


@pytest.mark.parametrize(
    ('metres', 'millimetres'),
    [
        (0.0014, 1),
        (0.0016, 2),
        (65.535, 65535),
        # no measurement, not the far end of 16 bits
        *((metres, 0) for metres in (65.536, 1e30, np.inf, -0.001, -np.inf, np.nan)),
    ],
)
def test_depth_is_the_nearest_millimetre_or_none(metres, millimetres):
    found = to_millimetres(np.full((2, 1, 1), metres, np.float32))
    assert found.dtype == np.uint16 and found.ravel().tolist() == [millimetres] * 2


@pytest.mark.parametrize(
    ('labels', 'there', 'is_labelled', 'notes'),
    [
        ([True, False], None, True, 0),
        ([True, None], None, False, 1),
        ([None, None], None, False, 0),
        ([True, False], {SUCCESS: {}}, True, 0),
        # a dataset keeps the columns that it has
        ([True, False], {}, False, 0),
    ],
)
def test_outcomes_are_a_column_where_each_episode_has_one(labels, there, is_labelled, notes):
    plans = [SimpleNamespace(label=label) for label in labels]
    existing = None if there is None else SimpleNamespace(features=there)
    noted: list[str] = []
    assert _is_labelled(plans, existing, noted.append) is is_labelled
    assert len(noted) == notes
    assert not noted or '1 of 2 episodes have no outcome' in noted[0]


VECTOR = {'dtype': 'float32', 'shape': (2,), 'names': ['a', 'b']}


@pytest.mark.parametrize(
    ('other', 'fps', 'named'),
    [
        ({'action': VECTOR}, (30, 30), []),
        ({'action': VECTOR}, (30, 15), ['fps']),
        ({}, (30, 30), ['action']),
        ({'action': VECTOR, 'extra': VECTOR}, (30, 30), ['extra']),
        ({'action': VECTOR | {'shape': (3,)}}, (30, 30), ['action']),
        ({'action': VECTOR | {'names': ['b', 'a']}}, (30, 30), ['action']),
        ({'action': VECTOR | {'dtype': 'float64'}}, (30, 30), ['action']),
    ],
)
def test_columns_that_differ_are_named(other, fps, named):
    found = differences({'action': VECTOR}, other, fps=fps)
    assert len(found) == len(named)
    assert all(name in line for name, line in zip(named, found, strict=True))
