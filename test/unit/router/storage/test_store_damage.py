# SPDX-License-Identifier: Apache-2.0
"""Damage to the store fails closed: nothing that was barred or drained drives after it."""

from __future__ import annotations

from pathlib import Path
import random
import shutil

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule, RuleBasedStateMachine
import pytest
from support.router.store_rig import (
    bars,
    copied,
    drained,
    drains,
    opened,
    POLICIES,
    rolled_back,
    SLOTS,
    written,
)

from lerobot_serve.router.placement.split import bucket
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
from lerobot_serve.router.storage.store import StoreRefused

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
