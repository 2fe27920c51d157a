# SPDX-License-Identifier: Apache-2.0
"""A folder becomes a version with exactly its files, or nothing of it is in the store."""

from __future__ import annotations

import errno
import os
from pathlib import Path
import random
import subprocess
import sys
import threading

import pytest
from support.paths import REPOSITORY
from support.processes.full_disk import files_of_at_most
from support.versions import killed_at
from support.versions.version_rig import (
    check_whole,
    CREATED,
    identify,
    policy_folder,
    published,
    version,
)

from lerobot_serve.tools.processes import end_with_parent
from lerobot_serve.versions import incoming, publishing
from lerobot_serve.versions.errors import PublishError, StoreError, VersionConflict
from lerobot_serve.versions.manifest import read_manifest
from lerobot_serve.versions.publishing import Details, PolicyIdentity, publish
from lerobot_serve.versions.store import VersionStore
from lerobot_serve.versions.transfer.fetching import Fetch
from lerobot_serve.versions.transfer.http_files import HttpSource, ServerAddress
from lerobot_serve.versions.transfer.serving import StoreHttpServer


@pytest.fixture
def store(tmp_path):
    return VersionStore.make(tmp_path / 'store')


@pytest.fixture
def policy(tmp_path):
    return policy_folder(tmp_path / 'policy')


def nothing_is_left(store: VersionStore) -> bool:
    return not check_whole(store) and not list(store.incoming.iterdir())


def test_a_version_has_the_files_and_what_was_said(store, policy):
    manifest = published(
        store,
        policy,
        parent='act@ffffffffffffffff',
        note='better at the edge',
        dataset_sha256='a' * 64,
        sources=('http://host:8320',),
    )
    assert manifest.id == identify(policy).fingerprint
    folder = store.path(manifest.id)
    assert read_manifest(folder) == manifest
    for each in manifest.files:
        assert (folder / each.path).read_bytes() == (policy / each.path).read_bytes()
        assert (folder / each.path).stat().st_mode & 0o777 == 0o444
    assert check_whole(store) == [manifest.id]
    assert not list(store.incoming.iterdir())
    # the manifest does not change the fingerprint
    assert identify(folder).fingerprint == manifest.id


def test_the_same_policy_again_is_there_already(store, policy):
    first = published(store, policy)
    again = publish(store, policy, identify, Details('2027-01-01T00:00:00Z', note='again'))
    assert not again.is_new
    assert read_manifest(store.path(first.id)) == first
    assert not list(store.incoming.iterdir())


def test_other_files_under_the_same_fingerprint_are_refused(store, policy):
    first = published(store, policy)
    (policy / 'README.md').write_text('new')
    with pytest.raises(VersionConflict, match=r'README.md differ; it stays unchanged'):
        published(store, policy)
    assert read_manifest(store.path(first.id)) == first
    assert not list(store.incoming.iterdir())


def test_hidden_names_are_left_out_and_named(store, policy):
    (policy / '.cache').mkdir()
    (policy / '.cache' / 'lock').write_text('')
    (policy / 'meta' / '.part').write_text('')
    done = publish(store, policy, identify, Details(CREATED))
    assert done.left_out == ('.cache', 'meta/.part')
    assert not any('.cache' in each.path for each in done.manifest.files)


@pytest.mark.parametrize('kind', ['file', 'folder', 'dangling', 'pipe'])
def test_links_and_pipes_are_refused(store, policy, tmp_path, kind):
    secret = tmp_path / 'secret'
    other = policy / 'README.md'
    if kind == 'pipe':
        os.mkfifo(other)
    else:
        secret.mkdir() if kind == 'folder' else kind == 'file' and secret.write_text('secret')
        other.symlink_to(secret)
    with pytest.raises(
        (PublishError, StoreError), match=r'README\.md is (a link to|not a regular)'
    ):
        published(store, policy)
    assert nothing_is_left(store)


def test_links_are_followed_where_the_publisher_says_so(store, policy, tmp_path):
    (policy / 'config.json').rename(tmp_path / 'real.json')
    (policy / 'config.json').symlink_to(tmp_path / 'real.json')
    done = publish(store, policy, identify, Details(CREATED), follows_links=True)
    file = store.path(done.manifest.id) / 'config.json'
    assert not file.is_symlink()
    assert file.read_bytes() == (tmp_path / 'real.json').read_bytes()
    # but not into folders, which may be large or a circle
    (policy / 'meta' / 'loop').symlink_to(policy)
    with pytest.raises(PublishError, match='meta/loop is not a regular file'):
        publish(store, policy, identify, Details(CREATED), follows_links=True)


def test_a_snapshot_of_the_hubs_cache_is_copied_through_its_own_links(store, policy, tmp_path):
    root = tmp_path / 'models--user--act'
    snapshot = root / 'snapshots' / ('c' * 40)
    snapshot.mkdir(parents=True)
    (root / 'blobs').mkdir()
    for name in ('config.json', 'model.safetensors'):
        (policy / name).rename(root / 'blobs' / f'blob-{name}')
        (snapshot / name).symlink_to(f'../../blobs/blob-{name}')
    manifest = published(store, snapshot)
    assert check_whole(store) == [manifest.id]
    assert not any(path.is_symlink() for path in store.path(manifest.id).iterdir())
    (snapshot / 'README.md').symlink_to(policy / 'meta' / 'info.json')
    with pytest.raises(PublishError, match='is a link to'):
        published(store, snapshot)


def test_a_policy_that_changes_while_it_is_copied_is_refused(store, policy):
    def identify_and_train(folder):
        found = identify(folder)
        (policy / 'model.safetensors').write_bytes(b'newer weights')
        return found

    with pytest.raises(PublishError, match='changed while it was published'):
        publish(store, policy, identify_and_train, Details(CREATED))
    assert nothing_is_left(store)


@pytest.mark.parametrize('keeps_time', [False, True])
def test_a_file_that_grows_while_it_is_read_is_refused(store, policy, keeps_time):
    weights = policy / 'model.safetensors'
    before = weights.stat()

    def append(_: int) -> None:
        with weights.open('ab') as file:
            file.write(b'more')
        if keeps_time:
            # as within one tick of the clock of a file system
            os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))

    with pytest.raises(PublishError, match=r'model\.safetensors changed while it was read'):
        publish(store, policy, identify, Details(CREATED), append)
    assert nothing_is_left(store)


@pytest.mark.parametrize('name', ['.act', 'a b', '', '../act'])
def test_a_fingerprint_that_is_no_name_of_a_folder_is_refused(store, policy, name):
    def with_name(folder):
        return PolicyIdentity(f'{name}@0123456789abcdef', 'lerobot')

    with pytest.raises(PublishError, match='give another --name'):
        publish(store, policy, with_name, Details(CREATED))
    assert nothing_is_left(store)


def test_a_version_is_not_published_again(store, policy):
    manifest = published(store, policy)
    with pytest.raises(PublishError, match='is a version already'):
        published(store, store.path(manifest.id))


def test_a_full_disk_leaves_nothing(store, policy):
    with (
        files_of_at_most(10_000),
        pytest.raises(StoreError, match='File too large; the store has no incomplete'),
    ):
        published(store, policy)
    assert nothing_is_left(store)
    assert published(store, policy)


@pytest.mark.parametrize('name', ['fsync', 'rename'])
def test_a_failing_disk_leaves_nothing(store, policy, monkeypatch, name):
    def failing(*_: object) -> None:
        raise OSError(errno.EIO, 'Input/output error')

    module = publishing if name == 'fsync' else incoming
    monkeypatch.setattr(module.os, name, failing)
    with pytest.raises(StoreError, match='Input/output error'):
        published(store, policy)
    monkeypatch.undo()
    assert nothing_is_left(store)


def test_everything_is_flushed_before_the_name_is_there(store, policy, monkeypatch):
    flushed: list[str] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        flushed.append(os.readlink(f'/proc/self/fd/{handle}'))
        real(handle)

    def rename(source, target) -> None:
        inside = {str(path) for path in source.rglob('*')} | {str(source)}
        assert inside <= set(flushed)
        flushed.clear()
        os.replace(source, target)

    monkeypatch.setattr(publishing.os, 'fsync', fsync)
    monkeypatch.setattr(incoming.os, 'rename', rename)
    published(store, policy)
    assert str(store.folder) in flushed


def test_two_publishers_of_one_policy_make_one_version(store, policy):
    both = threading.Barrier(2)
    done: list[bool] = []

    def identify_together(folder):
        both.wait(30)
        return identify(folder)

    def work() -> None:
        done.append(publish(store, policy, identify_together, Details(CREATED)).is_new)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert sorted(done) == [False, True]
    assert len(check_whole(store)) == 1
    assert not list(store.incoming.iterdir())


def test_publishing_one_leaves_what_another_one_publishes(store, policy, tmp_path):
    """A folder that is locked is not a leftover."""

    def identify_meanwhile(folder):
        if folder != policy:
            version(store, tmp_path, seed=2)
        return identify(folder)

    publish(store, policy, identify_meanwhile, Details(CREATED))
    assert len(check_whole(store)) == 2


def test_a_store_is_made_in_a_new_or_empty_folder_alone(tmp_path):
    (tmp_path / 'home').mkdir()
    (tmp_path / 'home' / 'letter.txt').write_text('')
    with pytest.raises(StoreError, match=r"not empty \(it holds 'letter.txt'\)"):
        VersionStore.make(tmp_path / 'home')
    with pytest.raises(StoreError, match='is not a store of versions'):
        VersionStore.open(tmp_path / 'home')
    VersionStore.make(tmp_path / 'new' / 'store')
    assert VersionStore.open(tmp_path / 'new' / 'store').entries() == []


LIMIT_S = 300.0
SIZE_BYTES = 3_000_000
FETCHER = """
import sys
from pathlib import Path
from lerobot_serve.versions.store import VersionStore
from lerobot_serve.versions.transfer import http_files
from lerobot_serve.versions.transfer.fetching import Fetch
http_files.BLOCK_BYTES = 4096
source = http_files.HttpSource(http_files.ServerAddress(sys.argv[1]))
def count(block):
    # go on when asked to, so that a kill meets a fetch that is not over
    print(block, flush=True)
    sys.stdin.readline()


Fetch(VersionStore.make(Path(sys.argv[2])), source, count=count).run('act')
"""


def environment() -> dict[str, str]:
    paths = [str(REPOSITORY), str(REPOSITORY / 'test'), os.environ.get('PYTHONPATH', '')]
    return {**os.environ, 'PYTHONPATH': os.pathsep.join(paths)}


@pytest.mark.slow
@pytest.mark.parametrize('what', ['publish', 'fetch', 'delete'])
def test_killed_at_each_call_a_version_is_whole_or_not_there(tmp_path, what):
    command = [sys.executable, killed_at.__file__, what, str(tmp_path)]
    done = subprocess.run(
        end_with_parent(command),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 15


@pytest.mark.parametrize('seed', range(3))
def test_a_fetch_continues_where_it_was_killed(tmp_path, seed):
    origin = VersionStore.make(tmp_path / 'origin')
    wanted = published(origin, policy_folder(tmp_path / 'policy', size_bytes=SIZE_BYTES))
    server = StoreHttpServer(origin)
    store = VersionStore.make(tmp_path / 'store')
    try:
        for blocks in random.Random(seed).sample(range(5, 300), 2):
            kill_after(blocks, server.url, store.folder)
            assert not check_whole(store)
            had = partial_bytes(store)
            assert 0 < had < wanted.size_bytes
        done = Fetch(store, HttpSource(ServerAddress(server.url))).run('act')
    finally:
        server.close()
    assert done.transferred_bytes == wanted.size_bytes - had
    assert check_whole(store) == [wanted.id]
    assert not list(store.incoming.iterdir())


def partial_bytes(store: VersionStore) -> int:
    files = [path for path in store.incoming.rglob('*') if path.is_file()]
    return sum(path.stat().st_size for path in files)


def kill_after(blocks: int, url: str, store: Path) -> None:
    command = [sys.executable, '-c', FETCHER, url, str(store)]
    with subprocess.Popen(
        end_with_parent(command),
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    ) as process:
        try:
            for _ in range(blocks):
                assert process.stdout.readline()
                process.stdin.write(b'\n')
        finally:
            process.kill()
