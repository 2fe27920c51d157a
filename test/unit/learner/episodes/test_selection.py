# SPDX-License-Identifier: Apache-2.0
"""Filters mean what they mean for a dataset; a bag is found where it can be read."""

from __future__ import annotations

from itertools import combinations
import os

import pytest
from support.learner.learner_rig import episode

from lerobot_serve.learner.selection import FILTERS, find_bag, is_selected, Place
from lerobot_serve.tools.dataset.episodes import EpisodePlan, parse_filter
from lerobot_serve.tools.dataset.episodes import is_selected as is_plan_selected

CHOICES = [each for count in range(4) for each in combinations(FILTERS, count)]


@pytest.mark.parametrize('filters', CHOICES)
@pytest.mark.parametrize('outcome', ['', 'success', 'failure', 'aborted'])
@pytest.mark.parametrize('person', [0, 3])
def test_as_for_a_dataset(filters, outcome, person, tmp_path):
    recorded = episode(1, tmp_path, outcome=outcome, control_steps_person=person)
    plan = EpisodePlan('r', 'e', None, (), 30, outcome=outcome, intervened=person > 0)
    expected = is_plan_selected(plan, [parse_filter(each) for each in filters])
    assert is_selected(recorded, filters) is expected


def test_a_copy_on_this_machine_comes_first(tmp_path):
    own, mounted = tmp_path / 'own', tmp_path / 'mounted'
    for path in (own, mounted):
        path.mkdir()
    places = [Place('robot', str(mounted)), Place('here', str(own))]
    assert find_bag(places, 'here').paths == (own, mounted)
    own.rmdir()
    assert find_bag(places, 'here').paths == (mounted,)


@pytest.mark.parametrize(
    ('host', 'path', 'reason', 'text'),
    [
        ('robot', '/nowhere/bag', 'other_host', 'on robot; mount that folder here'),
        ('here', '/nowhere/bag', 'missing', 'is not there any more; copy the bag'),
        ('here', '/nowhere/\udc80', 'missing', 'is not there'),
        ('here', '/a' * 3000, 'missing', 'is not there'),
    ],
)
def test_without_a_copy_it_says_what_to_do(host, path, reason, text):
    found = find_bag([Place(host, path)], 'here')
    assert (found.paths, found.reason) == ((), reason)
    assert text in found.text


@pytest.mark.skipif(os.getuid() == 0, reason='root may read everything')
def test_a_bag_that_may_not_be_read(tmp_path):
    bag = tmp_path / 'bag'
    bag.mkdir(0o000)
    found = find_bag([Place('here', str(bag))], 'here')
    assert found.reason == 'unreadable' and 'change its permissions' in found.text
    bag.chmod(0o755)


def test_no_place_is_known():
    assert find_bag([], 'here').reason == 'missing'
