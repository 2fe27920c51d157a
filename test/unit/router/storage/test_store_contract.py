# SPDX-License-Identifier: Apache-2.0
"""What every store does, a file and a database alike."""

from __future__ import annotations

import sqlite3

import psycopg
import pytest
from support.router.store_rig import BARRED, bars, drained, drains, placed, site_store

from benchmarks.site import postgres
from lerobot_serve.router.storage.address import StateAddress
from lerobot_serve.router.storage.records import (
    Batch,
    default_decisions,
    DRAIN,
    ROLLOUT,
    VERDICT,
)
from lerobot_serve.router.storage.sqlite_store import FILE, SqliteStore
from lerobot_serve.router.storage.store import Store, StoreRefused, StoreUnwritable

SITE = StateAddress('', 'default').schema


class FileState:
    """The state of a router in a folder."""

    newer = 'PRAGMA user_version = 99'

    def __init__(self, folder, _: object) -> None:
        self._folder = folder

    def open(self) -> Store:
        return SqliteStore(self._folder, 100, 'now')

    def execute(self, *statements: str) -> None:
        connection = sqlite3.connect(self._folder / FILE, isolation_level=None)
        for statement in statements:
            connection.execute(statement)
        connection.close()


class DatabaseState:
    """The state of a site in a database."""

    newer = 'UPDATE store SET version = 99'

    def __init__(self, _: object, request) -> None:
        self._url = request.getfixturevalue('url')

    def open(self) -> Store:
        return site_store(self._url, 100)

    def execute(self, *statements: str) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            for statement in (f'CREATE SCHEMA IF NOT EXISTS {SITE}', *statements):
                connection.execute(f'SET search_path TO {SITE}')
                connection.execute(statement)


@pytest.fixture(scope='module', autouse=True)
def started(request):
    """Start the server, if there is one, before it counts as left behind by a test."""
    if postgres.is_installed():
        request.getfixturevalue('server')


@pytest.fixture(params=[FileState, DatabaseState], ids=['file', 'database'])
def state(request, tmp_path):
    return request.param(tmp_path, request)


def written(state, *batches: Batch) -> Store:
    """Write batches as a router does, end, and return the state as the next one finds it."""
    for batch in (*batches, None):
        store = state.open()
        if batch:
            store.write(batch)
            assert not batch and store.failure == ''
        store.close()
    return store


def test_a_new_store_holds_nothing_against_any_slot(state):
    store = written(state)
    assert (store.failure, store.damage.text) == ('', '')
    assert store.content.decisions == default_decisions()
    assert (bars(store.content), drains(store.content)) == (set(), set())


def test_all_of_it_is_there_again(state):
    decisions = {**BARRED, (DRAIN, 'a'): drained(), ROLLOUT: {'state': 'rolled_back'}}
    places = placed('ep_1') | placed('ep_2', 'a', 'slot b takes no episodes: ü\ud800')
    events = [('ep_1', 'begun', 'candidate'), ('ep_1', 'failure', 'candidate')]
    batch = Batch(dict(decisions), {'two@2': {'samples': 3}}, dict(places))
    batch.episodes = list(enumerate(events, start=1))
    content = written(state, batch).content
    assert content.decisions == default_decisions() | decisions
    assert content.shadow == {'two@2': {'samples': 3}}
    assert list(content.placements) == ['ep_1', 'ep_2']
    assert content.placements['ep_2'].reason == 'slot b takes no episodes: ü?'
    assert [row for _, row in content.episodes] == events


def test_what_is_taken_back_is_gone(state):
    shadow = {'two@2': {'samples': 3}}
    known = Batch(dict(BARRED), shadow)
    content = written(state, known, Batch(dict.fromkeys(BARRED), dict.fromkeys(shadow))).content
    assert (content.decisions, content.shadow) == (default_decisions(), {})


@pytest.mark.parametrize(
    ('why', 'change'),
    [
        ('has schema 99 of a newer lerobot_serve', ''),
        ('is not a store of a router', 'CREATE TABLE songs (name text)'),
    ],
)
def test_a_store_of_others_is_refused_and_left_as_it_is(state, why, change):
    if not change:
        written(state)
    state.execute(change or state.newer)
    for _ in range(2):
        with pytest.raises(StoreRefused, match=why):
            state.open()


def test_a_batch_that_cannot_be_written_is_kept_and_written_later(state):
    store = state.open()
    store._connection.execute('ALTER TABLE episodes RENAME TO away')
    batch = Batch(episodes=[(1, ('ep_1', 'begun', 'candidate'))])
    for _ in range(2):
        with pytest.raises(StoreUnwritable, match='episodes'):
            store.write(batch)
        assert 'episodes' in store.failure and batch.episodes
    store.close()
    state.execute('ALTER TABLE away RENAME TO episodes')
    assert [row for _, row in written(state, batch).content.episodes] == [
        ('ep_1', 'begun', 'candidate')
    ]


@pytest.mark.parametrize('key', [(VERDICT, 'two@2'), (DRAIN, 'a')])
def test_a_decision_of_no_known_form_withholds_what_it_may_have_withheld(state, key):
    store = written(state, Batch({key: []}))
    assert f'the decision {" ".join(key)} cannot be read' in store.damage.text
    if key[0] == DRAIN:
        assert 'a' in drains(store.content)
    else:
        assert {('b', 'one@1'), ('b', 'two@2')} <= bars(store.content)
