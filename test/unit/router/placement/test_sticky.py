# SPDX-License-Identifier: Apache-2.0
"""The split gives a slot, and an episode keeps it for its whole life, whatever the split."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
import hashlib
from pathlib import Path
import subprocess
import sys

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule, RuleBasedStateMachine
import pytest
from support.router.placement_rig import place

from lerobot_serve.router.placement.placement_table import Placement, PlacementTable, REASON_LIMIT
from lerobot_serve.router.placement.split import bucket, BUCKETS, slot
from lerobot_serve.router.storage.sqlite_store import FILE, SqliteStore
from lerobot_serve.router.storage.writer import StoreWriter

EPISODES = ('a', 'b', 'c', 'd', 'e')
REASONS = ('', 'slot a takes no episodes: drained')


def turned(slot_name: str) -> tuple[str, str]:
    """Choose the other slot."""
    return {'a': 'b', 'b': 'a'}[slot_name], 'slot is drained'


def refuse(slot_name: str) -> tuple[str, str]:
    raise LookupError(slot_name)


def test_a_new_episode_is_placed_by_the_split():
    placement = place(PlacementTable(4), 'ep_42', 'request', 30)
    assert placement == Placement('ep_42', 29, 'a', 30)
    assert not (
        placement.sticky or placement.missing_episode_id or placement.moved or placement.reason
    )


def test_what_could_not_be_chosen_is_not_remembered():
    table = PlacementTable(4)
    with pytest.raises(LookupError):
        place(table, 'ep_42', 'request', 30, refuse)
    assert len(table) == 0
    assert not place(table, 'ep_42', 'request', 30).sticky


def test_an_episode_that_was_forgotten_before_it_had_to_move_is_remembered_anew():
    table = PlacementTable(1)
    place(table, 'ep_42', 'request', 30)
    place(table, 'ep_xyz', 'request', 40)
    moved = table.move('ep_42', 'b', 'slot a is drained')
    assert moved == Placement('ep_42', 29, 'b', 40, moved=True, reason='slot a is drained')
    assert table.find('ep_42').slot == 'b'
    assert len(table) == 1


def test_a_router_of_one_slot_has_no_split():
    table = PlacementTable(4)
    assert place(table, 'ep_42', 'request', None) == Placement('ep_42', 29, 'prod', None)
    assert place(table, 'ep_42', 'request', None).sticky
    assert place(table, '', 'ep_42', None).slot == 'prod'


@pytest.mark.parametrize(
    ('before', 'after', 'slot_name', 'gone'), [(30, None, 'prod', 'a'), (None, 30, 'a', 'prod')]
)
def test_an_episode_leaves_a_slot_that_the_router_has_no_more(before, after, slot_name, gone):
    table = PlacementTable(4)
    place(table, 'ep_42', 'request', before)
    again = place(table, 'ep_42', 'request', after)
    reason = f'there is no slot {gone} any more'
    assert again == Placement('ep_42', 29, slot_name, after, moved=True, reason=reason)
    assert place(table, 'ep_42', 'request', after, refuse).sticky


def test_a_long_reason_is_cut():
    table = PlacementTable(4)
    assert len(table.move('ep_42', 'b', 'x' * 5000).reason) == REASON_LIMIT
    assert len(place(table, 'one', '', 30, lambda s: (s, 'x' * 5000)).reason) == REASON_LIMIT


class Life(RuleBasedStateMachine):
    """A table against a plain account of where each episode has to be."""

    capacity = 3

    def __init__(self) -> None:
        super().__init__()
        self.table = PlacementTable(self.capacity)
        self.account: OrderedDict[str, tuple[str, bool]] = OrderedDict()

    @rule(
        episode=st.sampled_from(EPISODES),
        split=st.integers(0, 100),
        choose=st.sampled_from([turned, None]),
    )
    def place(self, episode, split, choose):
        wanted = slot(bucket(episode), split)
        placement = place(self.table, episode, '', split, choose or (lambda s: (s, '')))
        assert placement.sticky == (episode in self.account)
        placed = (turned(wanted)[0] if choose else wanted), False
        self.remember(episode, self.account.get(episode, placed))
        assert (placement.slot, placement.moved) == self.account[episode]

    @rule(episode=st.sampled_from(EPISODES), name=st.sampled_from('ab'))
    def move(self, episode, name):
        placement = self.table.move(episode, name, 'drained')
        assert (placement.slot, placement.moved, placement.sticky) == (name, True, False)
        self.remember(episode, (name, True))

    @rule(split=st.integers(0, 100), number=st.integers(0, 9))
    def place_without_an_episode(self, split, number):
        placement = place(self.table, '', f'request {number}', split)
        assert placement.missing_episode_id
        assert placement.slot == slot(bucket(f'request {number}'), split)

    def remember(self, episode, where):
        self.account[episode] = where
        self.account.move_to_end(episode)
        if len(self.account) > self.capacity:
            self.account.popitem(last=False)

    @invariant()
    def the_account_is_right(self):
        found = {name: self.table.find(name) for name in EPISODES}
        assert {n: (p.slot, p.moved) for n, p in found.items() if p} == dict(self.account)
        assert all(placement.sticky for placement in found.values() if placement)
        assert len(self.table) == len(self.account) <= self.capacity


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


# with a store

steps = st.tuples(
    st.sampled_from(EPISODES),
    st.integers(0, 100) | st.sampled_from('ab'),
    st.sampled_from(REASONS),
)


@contextmanager
def writing(folder: Path, capacity: int) -> Iterator[StoreWriter]:
    writer = StoreWriter(SqliteStore(folder, capacity, 'now'), pytest.fail, pytest.fail)
    yield writer
    writer.close()


@settings(max_examples=60, deadline=None)
@given(script=st.lists(steps, max_size=40), capacity=st.integers(1, 6))
def test_a_table_that_is_made_again_places_no_episode_elsewhere(
    tmp_path_factory, script, capacity
):
    folder = tmp_path_factory.mktemp('store')
    with writing(folder, capacity) as writer:
        table = PlacementTable(capacity, writer=writer)
        for number, (episode, where, reason) in enumerate(script):
            if isinstance(where, str):
                table.move(episode, where, reason)
            else:
                place(table, episode, '', where, lambda s, reason=reason: (s, reason))
            if number % 7 == 6:
                writer.flush()
    with writing(folder, capacity) as writer:
        again = PlacementTable(capacity, writer.store.content.placements)
    for episode in EPISODES:
        assert again.find(episode) == table.find(episode)


def test_only_what_is_new_is_written():
    written = []

    class Notes:
        def place(self, episode_id, decided):
            written.append((episode_id, decided and decided.slot))

    table = PlacementTable(2, writer=Notes())
    place(table, 'ep_42', 'request', 30)
    before = list(written)
    for _ in range(10):
        place(table, 'ep_42', 'request', 0)
        place(table, '', 'request', 30)
        table.find('ep_42')
    assert written == before
    table.move('ep_42', 'b', '')
    assert written[1:] == [('ep_42', 'b')]
    table.move('ep_43', 'b', '')
    table.move('ep_44', 'b', '')
    assert written[3:] == [('ep_44', 'b'), ('ep_42', None)]


def test_neither_table_nor_store_grow_with_the_episodes_that_were_seen(tmp_path):
    sizes = []
    with writing(tmp_path, 100) as writer:
        table = PlacementTable(100, writer=writer)
        for number in range(6000):
            place(table, f'episode {number}', 'request', 50)
            if number % 50 == 0:
                writer.flush()
                sizes.append((tmp_path / FILE).stat().st_size)
        assert len(table) == 100
    assert sizes[-1] < 200_000
    with writing(tmp_path, 100) as writer:
        again = PlacementTable(100, writer.store.content.placements)
    newest = [f'episode {6000 - n}' for n in range(1, 101)]
    assert [again.find(name) for name in newest] == [table.find(name) for name in newest]


def test_alike_decisions_are_one_object():
    table = PlacementTable(10_000)
    for number in range(10_000):
        place(table, f'episode {number}', 'request', 50)
    assert len({id(decided) for decided in table._placed.values()}) <= 100


names = st.text(st.characters(exclude_categories=['Cs']))


@pytest.mark.parametrize(('key', 'number'), [('ep_xyz', 77), ('ep_42', 29)])
def test_the_documented_vectors(key, number):
    assert bucket(key) == number


def test_the_bucket_does_not_depend_on_the_process():
    code = "from lerobot_serve.router.placement.split import bucket; print(bucket('ep_xyz'))"
    command = [sys.executable, '-c', code]
    assert subprocess.run(command, capture_output=True, timeout=60).stdout == b'77\n'


@given(names)
def test_the_bucket_is_what_the_module_says(key):
    digest = hashlib.sha256(key.encode('utf-8')).hexdigest()
    assert bucket(key) == int(digest[:16], 16) % 100


@given(st.integers(0, BUCKETS - 1), st.integers(0, 100))
def test_slot_a_is_for_the_buckets_below_the_split(number, split_percent):
    assert slot(number, split_percent) == ('a' if number < split_percent else 'b')


def test_without_a_split_there_is_one_slot():
    assert {slot(number, None) for number in range(BUCKETS)} == {'prod'}


def test_the_share_of_a_million_episodes_is_the_one_asked_for():
    counts = [0] * BUCKETS
    for number in range(1_000_000):
        counts[bucket(f'robot_{number % 7}-{number}')] += 1
    for split_percent in range(101):
        to_a = sum(c for n, c in enumerate(counts) if slot(n, split_percent) == 'a')
        assert abs(to_a / 10_000 - split_percent) < 0.2
