# SPDX-License-Identifier: Apache-2.0
"""Versions are found by what is unique, and deleted only where no pin, child or server is."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support.versions.version_rig import check_whole, damage, rewritten_manifest, version

from lerobot_serve.tools.processes import end_with_parent
from lerobot_serve.versions import incoming, layout
from lerobot_serve.versions.errors import (
    DamagedVersion,
    NoSuchVersion,
    StoreError,
    VersionInUse,
    VersionKept,
)
from lerobot_serve.versions.incoming import FETCH, incoming_folder, LEFTOVER_LIMIT_S
from lerobot_serve.versions.layout import exclusive, store_lock, VersionLock
from lerobot_serve.versions.manifest import differences
from lerobot_serve.versions.store import check, faults_of, find_id, lock_checked, VersionStore

KNOWN = ('act@aaaa000011112222', 'act@aaab000011112222', 'act_2@cccc000011112222')
SERVER = """
import sys
from pathlib import Path
from lerobot_serve.versions.store import lock_checked
held = lock_checked(Path(sys.argv[1]))
print('serving', flush=True)
sys.stdin.read()
"""


@pytest.fixture
def store(tmp_path):
    return VersionStore.make(tmp_path / 'store')


@pytest.mark.parametrize(
    ('given', 'found'),
    [
        (KNOWN[0], 0),
        ('act@aaaa', 0),
        ('aaab', 1),
        ('act_2', 2),
        ('act_', 2),
        ('cccc000011112222', 2),
    ],
)
def test_a_version_is_found_by_what_is_unique(given, found):
    assert find_id(given, KNOWN, 'here') == KNOWN[found]


@pytest.mark.parametrize('given', ['act', 'a', 'aaaa0000111122223', 'ccc', '', 'none', '@'])
def test_what_is_not_unique_is_refused_with_the_candidates(given):
    with pytest.raises(NoSuchVersion, match='act@aaaa000011112222'):
        find_id(given, KNOWN, 'here')


def test_versions_are_listed_in_the_order_of_their_making(store, tmp_path):
    late = version(store, tmp_path, 1, created='2026-11-27T00:00:00Z')
    early = version(store, tmp_path, 2)
    assert [each.id for each in store.entries()] == [early.id, late.id]
    damaged = store.path(late.id) / 'version.json'
    damaged.unlink()
    entries = store.entries()
    assert [each.id for each in entries] == [late.id, early.id]
    assert 'version.json' in entries[0].fault


def test_a_manifest_of_another_version_is_a_fault(store, tmp_path):
    manifest = version(store, tmp_path)
    other = f'act@{"0" * 16}'
    rewritten_manifest(store, manifest.id, manifest.id, other)
    assert store.entry(manifest.id).fault == f'its manifest is that of {other}'


def test_a_pinned_version_stays(store, tmp_path):
    manifest = version(store, tmp_path)
    store.pin(manifest.id, 'in production')
    assert store.entry('act').pin == 'in production'
    with pytest.raises(VersionKept, match=r'is pinned \(in production\).*versions unpin'):
        store.delete(manifest.id, also_parent=True)
    assert check_whole(store) == [manifest.id]
    store.unpin(manifest.id)
    store.unpin(manifest.id)
    store.delete(manifest.id)
    assert not check_whole(store)
    with pytest.raises(NoSuchVersion):
        store.pin(manifest.id, '')
    with pytest.raises(NoSuchVersion):
        store.delete(manifest.id)


def test_a_version_that_a_server_holds_stays_until_the_server_ends(store, tmp_path):
    manifest = version(store, tmp_path)
    command = [sys.executable, '-c', SERVER, str(store.path(manifest.id))]
    with subprocess.Popen(
        end_with_parent(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as server:
        try:
            assert server.stdout.readline() == b'serving\n'
            with pytest.raises(VersionInUse, match='a policy server serves it'):
                store.delete(manifest.id)
            assert check_whole(store) == [manifest.id]
        finally:
            server.kill()
    store.delete(manifest.id)
    assert not check_whole(store)


def test_two_servers_hold_one_version(store, tmp_path):
    folder = store.path(version(store, tmp_path).id)
    first, second = lock_checked(folder), lock_checked(folder)
    first.release()
    first.release()
    with pytest.raises(VersionInUse):
        store.delete(folder.name)
    second.release()
    store.delete(folder.name)


def test_a_server_does_not_begin_with_a_version_that_is_deleted(store, tmp_path, monkeypatch):
    folder = store.path(version(store, tmp_path).id)
    with exclusive(folder / 'version.json', AssertionError), pytest.raises(VersionInUse):
        VersionLock(folder)
    real = layout.try_lock

    def deleted_before_the_lock(handle: int, mode: int) -> bool:
        monkeypatch.setattr(layout, 'try_lock', real)
        store.delete(folder.name)
        return real(handle, mode)

    monkeypatch.setattr(layout, 'try_lock', deleted_before_the_lock)
    with pytest.raises(VersionInUse, match='is being deleted'):
        VersionLock(folder)


def test_a_version_without_a_manifest_can_be_deleted(store, tmp_path):
    folder = store.path(version(store, tmp_path).id)
    (folder / 'version.json').unlink()
    with pytest.raises(DamagedVersion):
        lock_checked(folder)
    store.delete(folder.name)
    assert not store.ids()


def test_a_store_that_another_process_changes_is_waited_for_in_vain(store, monkeypatch):
    monkeypatch.setattr(layout, 'WAIT_LIMIT_S', 0.05)
    with (
        store_lock(store.lock),
        pytest.raises(StoreError, match='another process changes the store'),
        store_lock(store.lock),
    ):
        pass


def test_leftovers_go_but_a_fetch_may_be_continued_for_days(store, tmp_path, monkeypatch):
    names = ['publish~act@0123456789abcdef~1', 'deleted~act@0123456789abcdef~2']
    fetched = f'{FETCH}~act@0123456789abcdef~3'
    for name in (*names, fetched):
        (store.incoming / name / 'meta').mkdir(parents=True)
    with incoming_folder(store, f'{FETCH}~act@ffffffffffffffff~4'):
        assert {path.name for path in store.incoming.iterdir()} > {fetched}
        assert not {path.name for path in store.incoming.iterdir()} & set(names)
    now = incoming.time.time()
    monkeypatch.setattr(incoming.time, 'time', lambda: now + LEFTOVER_LIMIT_S + 60)
    version(store, tmp_path)
    assert not list(store.incoming.iterdir())


def test_what_is_wrong_with_a_version_is_said(store, tmp_path):
    manifest = version(store, tmp_path)
    folder = store.path(manifest.id)
    assert faults_of(folder, manifest) == []
    file = damage(store, manifest.id)
    assert 'model.safetensors has another SHA-256' in faults_of(folder, manifest)[0]
    file.write_bytes(b'short')
    (folder / 'added.py').write_text('')
    assert faults_of(folder, manifest) == [
        'model.safetensors has 5 of 20000 bytes',
        'added.py is not in the manifest',
    ]
    file.unlink()
    file.symlink_to('/dev/zero')
    (folder / 'meta' / 'info.json').unlink()
    with pytest.raises(DamagedVersion) as error:
        check(folder)
    for text in ('meta/info.json is missing', 'model.safetensors is a link', 'versions delete'):
        assert text in str(error.value)


def test_a_folder_below_that_is_a_link_is_refused(store, tmp_path):
    manifest = version(store, tmp_path)
    folder = store.path(manifest.id)
    (folder / 'meta').rename(tmp_path / 'elsewhere')
    (folder / 'meta').symlink_to(tmp_path / 'elsewhere')
    assert faults_of(folder, manifest) == ['meta/info.json is a link']


def test_versions_are_compared_by_their_manifests(store, tmp_path):
    first = version(store, tmp_path, 1, note='first')
    second = version(store, tmp_path, 2, parent=first.id)
    found = differences(first, second)
    assert found.is_parent
    assert found.same_files == 1
    assert {each.path for each in found.files} == {'config.json', 'model.safetensors'}
    assert all(each.is_changed for each in found.files)
    assert {(each.name, each.first) for each in found.fields} == {
        ('parent', ''),
        ('note', 'first'),
    }
    assert differences(first, first).files == ()
    assert differences(first, first).same_files == 3
