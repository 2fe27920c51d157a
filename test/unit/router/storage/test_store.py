# SPDX-License-Identifier: Apache-2.0
"""What a router knows across restarts: kept whole, used by one, never made of a foreign file."""

from __future__ import annotations

from pathlib import Path
import shutil

import pytest
from support.router.store_rig import BARRED, bars, copied, drained, drains, opened, placed, written

from lerobot_serve import atomic_file
from lerobot_serve.errors import UserError
from lerobot_serve.router.storage import sqlite_rows as schema
from lerobot_serve.router.storage.records import (
    Batch,
    default_decisions,
    DRAIN,
)
from lerobot_serve.router.storage.sqlite_store import FILE, SqliteStore
from lerobot_serve.router.storage.store import StoreRefused, StoreUnwritable
from lerobot_serve.router.storage.writer import StoreWriter
from lerobot_serve.state_folder import FolderLock


def test_of_the_placements_the_newest_are_known_and_what_is_forgotten_is_gone(tmp_path):
    store = SqliteStore(tmp_path, 100, 'now')
    for name in ('ep_1', 'ep_2', 'ep_3', 'ep_1'):
        store.write(Batch(placements=placed(name)))
    store.write(Batch(placements={'ep_2': None}))
    store.close()
    assert list(opened(tmp_path).content.placements) == ['ep_3', 'ep_1']
    assert list(opened(tmp_path, capacity=1).content.placements) == ['ep_1']


def test_two_routers_never_have_one_store(tmp_path):
    first = SqliteStore(tmp_path, 100, 'now')
    with pytest.raises(StoreRefused, match='in use by another process; stop that one'):
        SqliteStore(tmp_path, 100, 'now')
    first.write(Batch(dict(BARRED)))
    first.close()
    assert ('b', 'two@2') in bars(opened(tmp_path).content)


def test_an_older_store_is_brought_up_to_date_a_step_at_a_time(tmp_path, monkeypatch):
    written(tmp_path, BARRED)
    steps = (*schema.MIGRATIONS, ('CREATE TABLE more (name)',), ('ALTER TABLE more ADD at TEXT',))
    monkeypatch.setattr('lerobot_serve.router.storage.sqlite_store.MIGRATIONS', steps)
    monkeypatch.setattr('lerobot_serve.router.storage.sqlite_store.VERSION', len(steps))
    store = SqliteStore(tmp_path, 100, 'now')
    assert store._connection.execute('PRAGMA user_version').fetchone() == (len(steps),)
    store._connection.execute("INSERT INTO more VALUES ('x', 'y')")
    assert store.content.decisions == default_decisions() | BARRED
    store.close()


def test_what_was_written_is_with_the_system_when_write_returns(tmp_path):
    store = SqliteStore(tmp_path / 'here', 100, 'now')
    store.write(Batch(placements=placed('ep_1')))
    store.write(Batch(dict(BARRED)))
    store.write(Batch(placements=placed('ep_2')))
    content = opened(copied(tmp_path / 'here', tmp_path / 'there')).content
    store.close()
    assert bars(content) == {('a', 'two@2'), ('b', 'two@2'), ('prod', 'two@2')}
    assert list(content.placements) == ['ep_1', 'ep_2']


def test_a_decision_does_not_stand_in_the_log_alone(tmp_path):
    store = SqliteStore(tmp_path / 'here', 100, 'now')
    store.write(Batch(dict(BARRED)))
    there = copied(tmp_path / 'here', tmp_path / 'there')
    store.close()
    (there / f'{FILE}-wal').unlink(missing_ok=True)
    assert ('b', 'two@2') in bars(opened(there).content)


def test_a_disk_that_is_full_writes_nothing_and_all_of_it_later(tmp_path):
    store = SqliteStore(tmp_path, 100, 'now')
    pages = store._connection.execute('PRAGMA page_count').fetchone()[0]
    store._connection.execute(f'PRAGMA max_page_count = {pages}')
    much = Batch(
        {**BARRED}, placements={k: v for n in range(2000) for k, v in placed(f'ep_{n}').items()}
    )
    with pytest.raises(StoreUnwritable):
        store.write(much)
    assert 'full' in store.failure
    # SQLite counts pages for one connection: the next one has room
    store.write(much)
    assert store.failure == ''
    store.close()
    content = opened(tmp_path, 5000).content
    assert len(content.placements) == 2000 and ('b', 'two@2') in bars(content)


def test_a_folder_that_is_taken_away_is_made_again_with_all_decisions(tmp_path):
    store = SqliteStore(tmp_path / 'here', 100, 'now')
    store.write(Batch(dict(BARRED)))
    for file in (tmp_path / 'here').iterdir():
        file.unlink()
    (tmp_path / 'here').rmdir()
    store.write(Batch(placements=placed('ep_1')))
    store.close()
    content = opened(tmp_path / 'here').content
    assert ('b', 'two@2') in bars(content) and list(content.placements) == ['ep_1']


def test_a_store_that_fails_is_a_warning_and_one_that_works_again_is_none(tmp_path, monkeypatch):
    warned, informed = [], []
    store = SqliteStore(tmp_path, 100, 'now')
    writer, write = StoreWriter(store, warned.append, informed.append), store.write

    def full(batch: Batch) -> None:
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr(store, 'write', full)
    for _ in range(2):
        assert 'No space left' in writer.decide(BARRED, keep=True)
    assert len(warned) == 1
    assert 'routing continues' in warned[0]
    assert informed == []
    monkeypatch.setattr(store, 'write', write)
    for _ in range(2):
        assert writer.decide(BARRED, keep=True) == ''
    assert (len(warned), informed) == (1, [f'{store.path} is writable again'])
    writer.close()


def test_a_folder_that_another_router_put_in_its_place_is_left_alone(tmp_path):
    here = tmp_path / 'here'
    store = SqliteStore(here, 100, 'now')
    store.lock = FolderLock(here, '/first', 'state_folder')
    shutil.rmtree(here)
    other = FolderLock(here, '/second', 'state_folder')
    for _ in range(2):
        with pytest.raises(OSError, match='in use by /second'):
            store.write(Batch(dict(BARRED)))
    other.release()
    store.write(Batch(dict(BARRED)))
    with pytest.raises(UserError, match='in use by /first'):
        other.renew()
    store.close()
    other.renew()
    other.release()
    assert ('b', 'two@2') in bars(opened(here).content)


def test_a_new_file_survives_a_power_cut(tmp_path, monkeypatch):
    synced: list[Path] = []
    monkeypatch.setattr(atomic_file, 'sync_folder', synced.append)
    SqliteStore(tmp_path / 'here', 100, 'now').close()
    assert synced == [tmp_path / 'here']


def test_a_file_that_is_put_in_its_place_does_not_take_the_decisions(tmp_path):
    written(tmp_path / 'other', {})
    store = SqliteStore(tmp_path / 'here', 100, 'now')
    store.write(Batch(dict(BARRED)))
    (tmp_path / 'other' / FILE).replace(tmp_path / 'here' / FILE)
    store.write(Batch({(DRAIN, 'a'): drained()}))
    store.close()
    content = opened(tmp_path / 'here').content
    assert ('b', 'two@2') in bars(content) and drains(content) == {'a'}
    assert (tmp_path / 'here' / f'{FILE}.damaged-1').exists()
