# SPDX-License-Identifier: Apache-2.0
"""What a router knows across restarts: kept whole, used by one; damage to it fails closed."""

from __future__ import annotations

from pathlib import Path
import random
import shutil

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule, RuleBasedStateMachine
import pytest
from support.router.store_rig import (
    BARRED,
    bars,
    copied,
    drained,
    drains,
    opened,
    placed,
    POLICIES,
    rolled_back,
    SLOTS,
    written,
)

from lerobot_serve import atomic_file
from lerobot_serve.errors import UserError
from lerobot_serve.router.placement.split import bucket
from lerobot_serve.router.storage import sqlite_rows as schema
from lerobot_serve.router.storage.records import (
    Batch,
    default_decisions,
    DRAIN,
    NO_DRAIN,
    StoreContent,
    stored_placement,
    VERDICT,
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


PLACED = {f'ep_{n}': stored_placement(bucket(f'ep_{n}'), 'b', 50, False, '') for n in range(40)}
KEPT = {
    (VERDICT, 'two@2'): rolled_back(),
    (DRAIN, 'a'): drained(),
    ('parameter', 'split_percent'): {'value': 100, 'file': 50, 'when': 'x', 'by': 'by hand'},
}


@pytest.fixture(scope='module')
def whole(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp('whole')
    written(folder, KEPT, placements=PLACED)
    return folder


def with_damage(whole: Path, to: Path, damage) -> Path:
    shutil.copytree(whole, to)
    data = bytearray((to / FILE).read_bytes())
    (to / FILE).write_bytes(bytes(damage(data)))
    return to


def check_closed(folder: Path) -> None:
    """What was barred or drained is so, unless the store refuses to be opened."""
    try:
        content = opened(folder).content
    except StoreRefused:
        return
    assert {('b', 'two@2'), ('a', 'two@2')} <= bars(content) or bars(content) >= {
        ('b', policy) for policy in POLICIES
    }
    assert 'a' in drains(content)
    # and stays so
    again = opened(folder)
    assert again.damage.text == ''
    assert bars(again.content) == bars(content) and drains(again.content) == drains(content)
    known = again.content.placements
    assert all(PLACED[name] == known[name] for name in known)


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.sampled_from((1, 1, 1, 2, 8)))
def test_bytes_that_are_changed_never_let_a_policy_drive(whole, tmp_path_factory, seed, count):
    chance = random.Random(seed)

    def damage(data: bytearray) -> bytearray:
        for _ in range(count):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        return data

    check_closed(with_damage(whole, tmp_path_factory.mktemp('x') / 'y', damage))


@pytest.mark.parametrize(
    'damage',
    [
        lambda data: b'',
        lambda data: b'\0' * len(data),
        lambda data: data[: len(data) // 2],
        lambda data: data[:100],
        lambda data: b'{"canary": "rolled back"}',
        lambda data: data.replace(b'rolled_back', b'promoted\0\0\0'),
        lambda data: data.replace(b'maintenance', b'nothing    '),
        lambda data: data.replace(b'two@2', b'two@3'),
        lambda data: data.replace(b'verdict', b'Verdict'),
    ],
)
def test_what_is_torn_emptied_or_forged_fails_closed(whole, tmp_path, damage):
    check_closed(with_damage(whole, tmp_path / 'x', damage))


def test_the_damaged_file_is_kept_and_what_is_well_is_known(whole, tmp_path):
    folder = with_damage(whole, tmp_path / 'x', lambda data: data.replace(b'two@2', b'two@3'))
    store = opened(folder)
    assert (folder / f'{FILE}.damaged-1').exists()
    assert 'the decision verdict two@3 was changed' in store.damage.text
    assert 'router.sqlite.damaged-1' in store.damage.text
    assert bars(store.content) == {('b', p) for p in POLICIES}
    assert drains(store.content) == {'a'}
    assert store.content.decisions['parameter', 'split_percent']['value'] == 100
    assert len(store.content.placements) == 40


def test_a_row_that_is_taken_away_is_missed(whole, tmp_path):
    shutil.copytree(whole, tmp_path / 'x')
    store = SqliteStore(tmp_path / 'x', 100, 'now')
    store._connection.execute("DELETE FROM decisions WHERE kind = 'verdict'")
    store.close()
    store = opened(tmp_path / 'x')
    assert 'decisions were changed or are missing' in store.damage.text
    assert bars(store.content) == {('b', p) for p in POLICIES}


def test_a_placement_that_is_changed_is_forgotten_and_concerns_no_slot(whole, tmp_path):
    def damage(data: bytearray) -> bytearray:
        at = data.index(b'ep_7')
        data[at + 3 : at + 4] = b'x'
        return data

    store = opened(with_damage(whole, tmp_path / 'x', damage))
    assert set(PLACED) - set(store.content.placements) == {'ep_7'}
    assert ('b', 'one@1') not in bars(store.content)
    assert drains(store.content) == {'a'}


DECISIONS = st.dictionaries(
    st.tuples(st.just(VERDICT), st.sampled_from(POLICIES))
    | st.tuples(st.just(DRAIN), st.sampled_from(SLOTS)),
    st.booleans(),
    min_size=1,
    max_size=3,
)


class Life(RuleBasedStateMachine):
    """A router that decides, is killed between and within transactions, and starts again."""

    def __init__(self) -> None:
        super().__init__()
        self.folder, self.number = None, 0
        self.decisions, self.placements = default_decisions(), {}
        self.store: SqliteStore | None = None

    def begin(self, folder: Path) -> None:
        self.folder = folder
        self.store = SqliteStore(folder, 1000, 'now')

    @rule(wanted=DECISIONS)
    def decide(self, wanted):
        batch = {}
        for (kind, name), is_set in wanted.items():
            if kind == DRAIN:
                batch[kind, name] = drained() if is_set else dict(NO_DRAIN)
            else:
                batch[kind, name] = rolled_back() if is_set else None
        self.store.write(Batch(dict(batch)))
        for key, value in batch.items():
            self.decisions[key] = value
        self.decisions = {k: v for k, v in self.decisions.items() if v is not None}

    @rule(count=st.integers(1, 60), slot=st.sampled_from('ab'))
    def place(self, count, slot):
        made = {}
        for _ in range(count):
            self.number += 1
            name = f'ep_{self.number % 150}'
            made[name] = stored_placement(bucket(name), slot, 50, self.number % 2 == 0, 'x' * 50)
        self.store.write(Batch(placements=dict(made)))
        self.placements |= made

    @rule()
    def die_between(self):
        """The process is killed: what the system has is what the next one finds."""
        to = copied(self.folder, self.folder.with_name(f'{self.folder.name}x'))
        self.store.close()
        self.begin(to)

    @rule(wanted=DECISIONS)
    def die_within(self, wanted):
        """A transaction that does not end was never begun."""
        connection = self.store._connection
        connection.execute('BEGIN IMMEDIATE')
        connection.execute("DELETE FROM decisions WHERE kind = 'verdict'")
        connection.execute('DELETE FROM placements')
        to = copied(self.folder, self.folder.with_name(f'{self.folder.name}x'))
        connection.execute('ROLLBACK')
        self.store.close()
        self.begin(to)

    @rule()
    def end_and_start(self):
        self.store.close()
        self.begin(self.folder)

    @rule(seed=st.integers(0, 2**32))
    def look_at_a_damaged_copy(self, seed):
        """Whatever byte is changed: a copy allows nothing that the store does not."""
        to = copied(self.folder, self.folder.with_name(f'{self.folder.name}damaged{seed}'))
        chance = random.Random(seed)
        file = chance.choice(sorted(f for f in to.iterdir() if f.stat().st_size))
        data = bytearray(file.read_bytes())
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        file.write_bytes(data)
        try:
            content = opened(to, 1000).content
        except StoreRefused:
            return
        candidate = {('b', p) for p in POLICIES}
        expected = bars(self.store_content())
        assert expected <= bars(content) or candidate <= bars(content)
        assert drains(self.store_content()) <= drains(content)

    def store_content(self) -> StoreContent:
        """Return what is known to have been decided."""
        return StoreContent(dict(self.decisions))

    @invariant()
    def it_knows_what_was_decided(self):
        if self.store is None:
            return
        assert self.store.content.decisions == self.decisions
        assert self.store.damage.text == ''

    def teardown(self):
        if self.store is None:
            return
        self.store.close()
        found = opened(self.folder, 1000).content
        assert found.decisions == self.decisions
        assert dict(found.placements) == self.placements


def test_a_life_with_deaths(tmp_path_factory):
    class InAFolder(Life):
        def __init__(self) -> None:
            super().__init__()
            self.begin(tmp_path_factory.mktemp('life') / 's')

    case = InAFolder.TestCase
    case.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
    case('runTest').runTest()
