"""What is remembered across a restart, and what is not believed."""

from __future__ import annotations

from errno import ENOSPC
import json
import os

from canary_rig import plan, QUICK, S, started, World
from hypothesis import given, HealthCheck, settings
from hypothesis import strategies as st
import pytest

from lerobot_serve.router.canary.canary import Canary
from lerobot_serve.router.canary.plan import Terms
from lerobot_serve.router.canary.states import State
from lerobot_serve.router.canary.store import CanaryFile, decode, encode, SAVE_PERIOD_NS


@pytest.fixture
def file(tmp_path):
    return tmp_path / 'canary.json'


def saved(file, world: World) -> bytes:
    assert CanaryFile(file).save(0, world.canary, at_once=True) == ''
    return file.read_bytes()


def again(file, **changes) -> tuple[Canary, str]:
    canary = Canary(changes.get('plan', plan()), changes.get('terms', QUICK))
    return canary, CanaryFile(file).load(canary)


def half_way() -> World:
    world = World().to_step(1)
    world.end('candidate', 9, 1)
    world.end('champion', 27, 3, open=1)
    world.look(after_s=20)
    return world


@pytest.mark.parametrize('end', ['trial', 'paused', 'promoted', 'rolled back', 'waiting'])
def test_it_goes_on_where_it_was(file, end):
    world = World() if end == 'waiting' else half_way()
    if end == 'paused':
        world.canary.pause('x')
    if end == 'promoted':
        world.to_step(3)
    if end == 'rolled back':
        world.canary.rollback('x')
    saved(file, world)
    canary, warning = again(file)
    assert warning == ''
    assert canary.memory() == world.canary.memory()
    assert canary.share_percent == world.canary.share_percent
    assert canary.history == world.canary.history


def test_the_counts_go_on_when_the_router_counts_from_zero(file):
    world = half_way()
    saved(file, world)
    later = World(again(file)[0])
    later.look()
    later.end('candidate', 9, 1)
    later.end('champion', 27, 3)
    later.look(after_s=39)
    assert later.canary.step == 1
    later.look(after_s=39)
    assert later.canary.step == 2
    assert later.canary.history[-1].why.endswith('candidate 90 % of 20, champion 90 % of 60')


def test_slots_that_are_not_found_yet_after_a_restart_roll_nothing_back(file):
    world = half_way()
    saved(file, world)
    later = World(again(file)[0])
    later.change('candidate', healthy=False, policy='')
    later.wait(100)
    assert (later.canary.state, later.canary.share_percent) == (State.HELD, 25)
    later.change('candidate', healthy=True, policy=world.candidate.policy)
    later.look()
    assert later.canary.state is State.RUNNING
    later.change('candidate', healthy=False)
    later.look()
    assert later.canary.state is State.ROLLED_BACK


def test_another_policy_after_a_restart_begins_anew(file):
    saved(file, half_way())
    later = World(again(file)[0])
    later.change('candidate', policy='third@3')
    assert [h.what for h in later.look()] == ['anew', 'started']


@pytest.mark.parametrize(
    'changes', [{'plan': plan('10', '100')}, {'terms': Terms()}, {'plan': plan(episodes=11)}]
)
def test_another_plan_or_other_terms_begin_anew(file, changes):
    saved(file, half_way())
    canary, warning = again(file, **changes)
    assert 'begins anew: it had another plan (5:10:60, 25:10:60' in warning
    assert canary.state is State.WAITING


def test_without_a_plan_nothing_is_remembered(file):
    saved(file, half_way())
    canary, warning = again(file, plan=None)
    assert (canary.state, warning) == (State.OFF, '')
    CanaryFile(file).save(0, canary, at_once=True)
    canary, warning = again(file)
    assert (canary.state, warning) == (State.WAITING, '')


def test_no_file_is_no_trouble(file):
    canary, warning = again(file)
    assert (canary.state, warning) == (State.WAITING, '')


def test_it_is_written_at_once_or_now_and_then(file):
    world, store = half_way(), CanaryFile(file)
    store.save(0, world.canary, at_once=False)
    first = file.read_bytes()
    world.look(after_s=1)
    store.save(1 * S, world.canary, at_once=False)
    assert file.read_bytes() == first
    store.save(2 * S, world.canary, at_once=True)
    second = file.read_bytes()
    assert second != first
    world.look(after_s=1)
    store.save(2 * S + SAVE_PERIOD_NS, world.canary, at_once=False)
    assert file.read_bytes() != second


def test_what_did_not_change_is_not_written(file):
    world, store = half_way(), CanaryFile(file)
    store.save(0, world.canary, at_once=True)
    file.unlink()
    store.save(10**12, world.canary, at_once=True)
    assert not file.exists()


def test_a_canary_that_is_over_is_not_written_for_ever(file):
    world, store = World().to_step(3), CanaryFile(file)
    store.save(0, world.canary, at_once=True)
    file.unlink()
    world.good_episodes()
    world.wait(1000)
    store.save(10**12, world.canary, at_once=False)
    assert not file.exists()


@pytest.mark.parametrize('call', ['fsync', 'replace'])
def test_a_full_disk_is_told_once_and_counted(file, monkeypatch, call):
    def full(*args):
        raise OSError(ENOSPC, 'No space left on device')

    world, store = half_way(), CanaryFile(file)
    before = saved(file, world)
    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        texts = [store.save(i, world.canary, at_once=True) for i in range(3)]
    assert 'the canary is not remembered' in texts[0]
    assert 'No space left on device' in texts[0]
    assert texts[1:] == ['', '']
    assert store.failures == 3
    assert [entry.name for entry in file.parent.iterdir()] == ['canary.json']
    assert file.read_bytes() == before
    world.look()
    assert store.save(4, world.canary, at_once=True) == ''
    assert file.read_bytes() != before


def test_a_folder_that_is_not_there_is_told(file):
    store = CanaryFile(file.parent / 'none' / 'canary.json')
    assert 'the canary is not remembered' in store.save(0, started().canary, at_once=True)
    assert store.failures == 1


def test_a_file_that_cannot_be_read_is_told(file):
    file.mkdir()
    canary, warning = again(file)
    assert 'begins anew' in warning
    assert 'cannot be read' in warning
    assert canary.state is State.WAITING


FOREIGN = (b'', b'{}', b'[]', b'null', b'{"format": 1}', b'\xff\xfe', b'[' * 100_000)


@pytest.mark.parametrize('content', FOREIGN, ids=lambda content: repr(content[:8]))
def test_a_foreign_file_is_set_aside(file, content):
    file.write_bytes(content)
    canary, warning = again(file)
    assert 'is damaged or not ours; set aside as' in warning
    assert canary.state is State.WAITING
    assert not file.exists()
    assert file.with_name('canary.json.damaged').read_bytes() == content


GOOD = encode(half_way().canary.memory())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, len(GOOD) - 1), st.integers(1, 255), st.booleans())
def test_damage_is_noticed(file, at, flip, torn):
    content = GOOD[:at] if torn else GOOD[:at] + bytes([GOOD[at] ^ flip]) + GOOD[at + 1 :]
    if decode(content) == decode(GOOD):
        # a space, or the case of a digit behind \u
        return
    file.write_bytes(content)
    canary, warning = again(file)
    assert 'begins anew' in warning
    assert canary.share_percent == 0


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
MEMORY = half_way().canary.memory()
PLACES = [
    *((name,) for name in MEMORY),
    *(('counts', slot) for slot in MEMORY['counts']),
    ('counts', 'candidate', 'answers'),
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
    assert not warning or 'begins anew' in warning
    assert json.loads(json.dumps(canary.memory(), allow_nan=False)) == canary.memory()


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
    ],
)
def test_what_cannot_be_is_refused(values):
    canary = Canary(plan(), QUICK)
    assert 'makes no sense' in canary.restore({**MEMORY, **values})
    assert (canary.state, canary.step) == (State.WAITING, 0)
