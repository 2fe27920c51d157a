"""What was learned in shadow survives a restart; a bad file or a full disk is never in the way."""

from __future__ import annotations

import errno
import json
from math import inf, nan
import os
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest
from shadow_rig import learn, SHADOW

from lerobot_serve.router.shadow import store
from lerobot_serve.router.shadow.qualification import Qualification, SAVE_PERIOD_NS
from lerobot_serve.router.shadow.store import Store


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / 'state' / 'shadow.json'


def test_what_was_learned_survives_a_restart(file):
    known = Qualification(file, print)
    for number in range(7):
        learn(known, number, f'e-{number}', in_spreads=2.0, trips=number == 3)
    learn(known, policy='another@1')
    known.save()
    again = Qualification(file, print)
    assert again.of(SHADOW) == known.of(SHADOW)
    assert again.of('another@1').samples == 1
    # an episode that goes on is no new one, and the time between is not known
    learn(again, 1000.0, 'e-6')
    assert (again.of(SHADOW).episodes, again.of(SHADOW).observed_s) == (7, 6)


def test_it_is_saved_now_and_then_and_only_when_it_has_changed(file):
    known = Qualification(file, print)
    known.save()
    known.save_now_and_then(0)
    assert not file.exists()
    learn(known)
    known.save_now_and_then(SAVE_PERIOD_NS - 1)
    assert not file.exists()
    known.save_now_and_then(SAVE_PERIOD_NS)
    assert file.exists()
    file.unlink()
    known.save_now_and_then(10 * SAVE_PERIOD_NS)
    assert not file.exists()
    learn(known)
    known.save_now_and_then(11 * SAVE_PERIOD_NS)
    assert file.exists()


def content(**changes: object) -> dict:
    """Return what a file holds of one policy, with fields of it changed."""
    record = {
        **dict.fromkeys(('episodes', 'samples', 'trips', 'divergence_count', 'spreads_count'), 1),
        **dict.fromkeys(('observed_s', 'divergence_sum', 'spreads_sum', 'latency_sum_ms'), 1.5),
        'recent': ['e-1'],
    }
    return {'version': 1, 'policies': {SHADOW: {**record, **changes}}}


DAMAGED = {
    'nothing': '',
    'half of it': json.dumps(content())[:60],
    'noise': '\x00\x01\x02',
    'a number': '7',
    'a list': '[]',
    'null': 'null',
    'too deep': '[' * 30_000,
    'another version': json.dumps({**content(), 'version': 2}),
    'no policies': json.dumps({'version': 1}),
    'policies as a list': json.dumps({'version': 1, 'policies': []}),
    'a policy as a number': json.dumps({'version': 1, 'policies': {SHADOW: 7}}),
    'a name without end': json.dumps({'version': 1, 'policies': {'x' * 300: {}}}),
    'a count below zero': json.dumps(content(samples=-1)),
    'a count that is none': json.dumps(content(samples=1.5)),
    'a count as a truth': json.dumps(content(trips=True)),
    'a count without end': json.dumps(content(episodes=10**30)),
    'a sum of NaN': json.dumps(content(observed_s=nan)),
    'an endless sum': json.dumps(content(divergence_sum=inf)),
    'a sum as a text': json.dumps(content(latency_sum_ms='1')),
    'episodes as a text': json.dumps(content(recent='e-1')),
    'episodes as numbers': json.dumps(content(recent=[1])),
}


@pytest.mark.parametrize('text', DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_is_set_aside_and_told(file, text):
    file.parent.mkdir()
    file.write_text(text)
    said: list[str] = []
    known = Qualification(file, said.append)
    # of null there is nothing that is lost
    if text != 'null':
        assert len(said) == 1
        assert str(file) in said[0] and 'shadow.json.broken' in said[0]
        assert (file.parent / 'shadow.json.broken').read_text() == text
    learn(known)
    known.save()
    assert Qualification(file, said.append).of(SHADOW).samples == 1


def test_a_whole_file_is_taken(file):
    file.parent.mkdir()
    file.write_text(json.dumps(content()))
    said: list[str] = []
    assert Qualification(file, said.append).of(SHADOW).divergence_mean == 1.5
    assert said == []


@given(st.binary(max_size=80), st.integers(0, 400), st.integers(0, 255))
@settings(max_examples=100)
def test_no_file_is_fatal(tmp_path_factory, noise, at, new):
    data = bytearray(json.dumps(content()).encode())
    data[at % len(data)] = new
    for bad in (bytes(data), noise):
        file = tmp_path_factory.mktemp('state') / 'shadow.json'
        file.write_bytes(bad)
        known = Qualification(file, lambda text: None)
        learn(known)
        known.save()
        assert Qualification(file, lambda text: None).of(SHADOW).samples >= 1


def test_a_file_far_too_long_is_not_read(file, monkeypatch):
    monkeypatch.setattr(store, 'BYTES_LIMIT', 100)
    file.parent.mkdir()
    file.write_text(json.dumps(content()))
    said: list[str] = []
    assert Qualification(file, said.append).of(SHADOW).samples == 0
    assert 'far too long' in said[0]


# a disk that is full


@pytest.fixture
def full(monkeypatch):
    """Let the disk be full until the returned function is called."""
    fsync = os.fsync

    def refuse(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(store.os, 'fsync', refuse)
    return lambda: monkeypatch.setattr(store.os, 'fsync', fsync)


def test_a_full_disk_is_told_once_and_written_when_it_is_free(file, full):
    said: list[str] = []
    known = Qualification(file, said.append)
    for number in range(4):
        learn(known)
        known.save_now_and_then(number * SAVE_PERIOD_NS)
    assert len(said) == 1
    assert 'No space left' in said[0] and str(file) in said[0]
    assert known.save_failures == 3
    assert list(file.parent.iterdir()) == []
    full()
    known.save_now_and_then(9 * SAVE_PERIOD_NS)
    assert Qualification(file, said.append).of(SHADOW).samples == 4
    assert len(said) == 1


def test_a_disk_that_is_full_again_is_told_again(file, full, monkeypatch):
    said: list[str] = []
    kept = Store(file, said.append)
    refuse = store.os.fsync
    assert not kept.save(1)
    full()
    assert kept.save(2)
    monkeypatch.setattr(store.os, 'fsync', refuse)
    assert not kept.save(3)
    assert len(said) == 2
    # what was there is still whole
    assert kept.load() == 2


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / 'file').write_text('')
    said: list[str] = []
    known = Qualification(tmp_path / 'file' / 'shadow.json', said.append)
    learn(known)
    known.save()
    assert 'cannot be' in said[-1]


def test_a_link_stays_a_link(tmp_path):
    target, link = tmp_path / 'real.json', tmp_path / 'shadow.json'
    link.symlink_to(target)
    assert Store(link, print).save([1])
    assert link.is_symlink()
    assert json.loads(target.read_text()) == [1]
