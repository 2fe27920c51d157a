# SPDX-License-Identifier: Apache-2.0
"""The canary state as plain data; invalid state is discarded."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st
import pytest
from support.router.canary_rig import plan, QUICK, World

from lerobot_serve.router.canary.canary import Canary
from lerobot_serve.router.canary.states import CanaryPhase


def half_way() -> World:
    world = World().to_step(1)
    world.end('candidate', 9, 1)
    world.end('champion', 27, 3, open=1)
    world.poll(after_s=20)
    return world


def test_the_verdict_of_an_open_episode_counts_after_a_restart():
    world = half_way()
    canary = Canary(plan(), QUICK)
    assert canary.restore(json.loads(json.dumps(world.canary.snapshot()))) == ''
    assert canary.open_episodes == world.canary.open_episodes
    later = World(canary)
    later.poll()
    later.verdicts('champion', 'success')
    later.poll()
    assert later.seen.champion.arm.success == 28
    assert canary.open_episodes == {}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
MEMORY = half_way().canary.snapshot()
PLACES = [
    *((name,) for name in MEMORY),
    *(('counts', slot) for slot in MEMORY['counts']),
    ('counts', 'candidate', 'replies'),
    *(('trial', name) for name in MEMORY['trial']),
    ('trial', 'totals', 'candidate'),
    ('trial', 'totals', 'candidate', 0),
    *(('trial', 'wide', name) for name in MEMORY['trial']['wide']),
    ('trial', 'wide', 'blocks', 0),
    ('trial', 'narrow', 'blocks', -1, 3),
    ('trial', 'narrow', 'wealth', 'rollback', 1),
    ('trial', 'open', 0),
    *(('trial', 'open', 0, place) for place in range(4)),
    ('alarms', 'trips'),
    ('alarms', 'trips', 2),
    ('policies', 'candidate'),
    ('history', 0),
    ('history', 0, 0),
]


@given(st.sampled_from(PLACES), JSON)
def test_what_makes_no_sense_begins_anew(place, value):
    memory = json.loads(json.dumps(MEMORY))
    inner = memory
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    canary = Canary(plan(), QUICK)
    warning = canary.restore(memory)
    # whatever it took over, it can go on with
    world = World(canary)
    world.good_episodes()
    world.wait(100)
    assert not warning or 'saved canary state discarded' in warning
    assert json.loads(json.dumps(canary.snapshot(), allow_nan=False)) == canary.snapshot()


@pytest.mark.parametrize(
    'values',
    [
        {'state': 'off'},
        {'state': 'promoted'},
        {'state': 'waiting'},
        {'step': 3},
        {'step': -1},
        {'step': True},
        {'passed': 1},
        {'worse': float('nan')},
        {'worse': -1.0},
        {'time_ns': 10**400},
        {'policies': {'candidate': '', 'champion': 'a'}},
        {'counts': {}},
        {'trial': {}},
        {'alarms': {}},
        {'trial': {**MEMORY['trial'], 'open': [['e', 'champion', 10**6, 0]]}},
        {'trial': {**MEMORY['trial'], 'totals': {'candidate': [1, 2, 0, 0, 0, 0]}}},
        {'why': None},
        *(
            {'counts': {**MEMORY['counts'], 'champion': {**MEMORY['counts']['champion'], **count}}}
            for count in (
                *({'replies': value} for value in (-1, 10**16, 1.0, True, None, '1')),
                {'restarts': -1},
            )
        ),
        {'alarms': {**MEMORY['alarms'], 'trips': [0.0] * 5}},
        {'alarms': {**MEMORY['alarms'], 'trips': [*MEMORY['alarms']['trips'][:-1], -1.0]}},
        {'watch': {}},
        *(
            {'watch': {'champion': 'a', 'is_over': False, 'earlier': [0] * 6, **values}}
            for values in (
                {'champion': 1},
                {'is_over': 0},
                {'earlier': [0] * 5},
                {'earlier': [0] * 7},
                {'earlier': [1, 2, 0, 0, 0, 0]},
                {'earlier': [1, -1, 0, 0, 0, 0]},
                {'earlier': [True, 0, 0, 0, 0, 0]},
            )
        ),
    ],
)
def test_what_cannot_be_is_refused(values):
    canary = Canary(plan(), QUICK)
    assert 'discarded: invalid' in canary.restore({**MEMORY, **values})
    assert (canary.state, canary.step) == (CanaryPhase.WAITING, 0)
