# SPDX-License-Identifier: Apache-2.0
"""States that released routers have written: they are read, and written again as they were."""

from __future__ import annotations

import json
import sqlite3

import pytest
from support.golden import FOLDER
from support.router.canary_rig import plan, QUICK

from lerobot_serve.router.canary.canary import Canary
from lerobot_serve.router.canary.facts import Facts
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.router.shadow.qualification import Qualification
from lerobot_serve.router.shared_state.fleet_facts import (
    counters_from_json,
    report_of,
    reported,
)
from lerobot_serve.router.storage.rows import to_json_line
from lerobot_serve.router.storage.sqlite_rows import APPLICATION_ID, VERSION
from lerobot_serve.router.storage.sqlite_store import FILE, SqliteStore

STATES = FOLDER / 'stored_state'
WATCHED = RouterParameters(canary_margin=0.2, canary_false_promotion=0.2, canary_block_episodes=1)


def read(name: str):
    return json.loads((STATES / f'{name}.json').read_text())


def rollout(values, rules: RouterParameters = QUICK):
    canary = Canary(plan(), rules)
    assert canary.restore(values) == ''
    return canary.snapshot()


def shadow_record(values):
    kept: dict[str, object] = {}
    known = Qualification({'new@1': values}, keep=kept.__setitem__, warn=pytest.fail)
    known.waive('new@1', values['waiver'])
    return kept['new@1']


@pytest.mark.parametrize(
    ('name', 'again'),
    [
        ('rollout', rollout),
        ('rollout_watched', lambda values: rollout(values, WATCHED)),
        ('shadow', shadow_record),
        ('report', lambda values: report_of(Facts(**reported(values)))),
        ('counters', lambda values: counters_from_json(values).as_json(values)),
    ],
)
def test_what_was_stored_is_read_and_written_again(name, again):
    assert f'{to_json_line(again(read(name)))}\n' == (STATES / f'{name}.json').read_text()


def test_a_rollout_of_0_1_goes_on_without_what_it_did_not_store():
    before, now = read('rollout_of_0_1'), rollout(read('rollout_of_0_1'))
    no_runs = {'counts': [0] * 4, 'robots': []}
    assert now['trial'].pop('runs') == {'candidate': no_runs, 'champion': no_runs}
    assert [
        now['counts'][arm].pop(name) for arm in now['counts'] for name in ('halts', 'restarts')
    ]
    assert now.pop('planned_policy') == before['policies']['candidate']
    watch = {'champion': '', 'is_over': False, 'earlier': [0] * 6, 'tripped': ''}
    assert (now.pop('watch'), now) == (watch, before)


def test_a_file_is_read_and_written_again(tmp_path):
    """Rows and digests of decisions, a shadow record, placements, and ends of episodes."""
    kept = sqlite3.connect(tmp_path / FILE)
    kept.executescript((STATES / 'router.sql').read_text())
    kept.executescript(f'PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version={VERSION}')
    kept.close()
    store, new = SqliteStore(tmp_path, 100, 'now'), SqliteStore(tmp_path / 'new', 100, 'now')
    assert not store.damage
    new.write(store.content.batch())
    store.close()
    new.close()
    written = sqlite3.connect(tmp_path / 'new' / FILE)
    assert '\n'.join([*written.iterdump(), '']) == (STATES / 'router.sql').read_text()
    written.close()
