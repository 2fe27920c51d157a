# SPDX-License-Identifier: Apache-2.0
"""
A fetched version has the hashes of its manifest, or it is not there; what has arrived is not
fetched again; servers that lie, stall or redirect are refused.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil

import pytest
from support.processes.full_disk import files_of_at_most
from support.versions.lying_server import LyingServer, reply
from support.versions.version_rig import (
    check_whole,
    damage,
    policy_folder,
    published,
    rewritten_manifest,
    version,
)

from lerobot_serve.versions.errors import (
    FetchError,
    Interrupted,
    NoSuchVersion,
    StoreError,
    VersionConflict,
    VersionError,
    VersionInUse,
)
from lerobot_serve.versions.store import VersionStore
from lerobot_serve.versions.transfer import fetching, http_files
from lerobot_serve.versions.transfer.fetching import ATTEMPTS, Fetch
from lerobot_serve.versions.transfer.http_files import HttpSource, Limits, ServerAddress
from lerobot_serve.versions.transfer.serving import StoreHttpServer
from lerobot_serve.versions.transfer.source import FolderSource, Opened

WEIGHTS = 'model.safetensors'
QUICK = Limits(read_s=0.2, head_s=0.4)


@pytest.fixture
def origin(tmp_path):
    return VersionStore.make(tmp_path / 'origin')


@pytest.fixture
def store(tmp_path):
    return VersionStore.make(tmp_path / 'store')


@pytest.fixture
def wanted(origin, tmp_path):
    return version(origin, tmp_path)


@pytest.fixture(params=['folder', 'version', 'http'])
def source(request, origin, wanted):
    """The same version from each kind of source."""
    if request.param == 'folder':
        yield FolderSource(origin.folder)
    elif request.param == 'version':
        yield FolderSource(origin.path(wanted.id))
    else:
        server = StoreHttpServer(origin)
        yield HttpSource(ServerAddress(server.url))
        server.close()


def fetch(store: VersionStore, source: object, given: str = 'act', **others: object):
    return Fetch(store, source, sleep=lambda _: None, **others).run(given)


def refused(
    store: VersionStore, source: object, error: type = FetchError, given: str = 'act'
) -> str:
    """Return why a fetch is refused; nothing of it is a version."""
    with pytest.raises(error) as found:
        fetch(store, source, given)
    assert not check_whole(store)
    return str(found.value)


def partial(store: VersionStore) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in store.incoming.rglob('*') if path.is_file()}


def test_a_version_is_fetched_with_its_manifest(origin, store, source, wanted):
    counted: list[int] = []
    done = fetch(store, source, count=counted.append)
    assert (done.manifest, done.is_new) == (wanted, True)
    assert done.transferred_bytes == sum(counted) == wanted.size_bytes
    assert check_whole(store) == [wanted.id]
    assert not list(store.incoming.iterdir())
    for name in (WEIGHTS, 'version.json'):
        of = [(each.path(wanted.id) / name).read_bytes() for each in (origin, store)]
        assert of[0] == of[1]
    again = fetch(store, source)
    assert (again.is_new, again.transferred_bytes) == (False, 0)


def test_an_unknown_version_is_refused(store, source):
    assert 'it has act@' in refused(store, source, NoSuchVersion, 'pi0')


def test_a_wrong_hash_is_refused_and_nothing_of_it_stays(origin, store, source, wanted):
    damage(origin, wanted.id)
    text = refused(store, source)
    assert f'{WEIGHTS} of' in text and 'nothing of it is used' in text
    assert WEIGHTS not in partial(store)
    assert refused(store, source)


@pytest.mark.parametrize('size', [0, 19_999, 20_001])
def test_a_wrong_size_is_refused(origin, store, source, wanted, size):
    file = origin.path(wanted.id) / WEIGHTS
    file.chmod(0o644)
    file.write_bytes(b'x' * size)
    assert str(size) in refused(store, source)
    assert WEIGHTS not in partial(store)


def test_a_link_at_the_source_is_not_followed(origin, store, source, wanted, tmp_path):
    file = origin.path(wanted.id) / WEIGHTS
    file.rename(tmp_path / 'weights')
    file.symlink_to(tmp_path / 'weights')
    refused(store, source, VersionError)


def test_a_manifest_under_another_name_is_refused(origin, store, wanted):
    other = f'act@{"0" * 16}'
    origin.path(wanted.id).rename(origin.path(other))
    with pytest.raises(FetchError, match=f'the manifest of {wanted.id} under the name {other}'):
        fetch(store, FolderSource(origin.folder))


def test_other_files_under_an_id_that_is_there_are_refused(origin, store, wanted, tmp_path):
    policy = policy_folder(tmp_path / 'other')
    (policy / 'README.md').write_text('')
    mine = published(store, policy)
    assert mine.id == wanted.id
    with pytest.raises(VersionConflict, match=r'README\.md differ'):
        fetch(store, FolderSource(origin.folder))
    assert (store.path(mine.id) / 'README.md').exists()


class Breaking(FolderSource):
    """A source whose connection breaks after some bytes of the weights, as often as it is said."""

    def __init__(self, folder, at: int, times: int = 10**9) -> None:
        super().__init__(folder)
        self.at, self.times, self.starts = at, times, []

    def open(self, version_id, file, start):
        opened = super().open(version_id, file, start)
        if file.path == WEIGHTS:
            self.starts.append(start)
            if self.times:
                self.times -= 1
                return self._broken(opened)
        return opened

    @contextlib.contextmanager
    def _broken(self, opened):
        with opened as whole:
            yield Opened(whole.start, self._some(whole.blocks))

    def _some(self, blocks):
        yield next(blocks)[: self.at]
        raise Interrupted('the connection ended')


def test_a_broken_connection_is_continued(origin, store, wanted):
    source = Breaking(origin.folder, at=700, times=3)
    done = fetch(store, source)
    assert source.starts == [0, 700, 1400, 2100]
    assert done.transferred_bytes == wanted.size_bytes
    assert check_whole(store) == [wanted.id]


def test_attempts_are_bounded_and_what_has_arrived_is_continued_later(origin, store, wanted):
    text = refused(store, Breaking(origin.folder, at=700))
    assert f'{ATTEMPTS} attempts failed. What has arrived is kept' in text
    assert partial(store)[WEIGHTS] == ATTEMPTS * 700
    source = Breaking(origin.folder, at=0, times=0)
    done = fetch(store, source)
    assert source.starts == [ATTEMPTS * 700]
    had = {'config.json', WEIGHTS}
    assert done.transferred_bytes < wanted.size_bytes - ATTEMPTS * 700
    assert {each.path for each in done.manifest.files} > had


def test_an_attempt_with_progress_does_not_count(origin, store, wanted, monkeypatch):
    monkeypatch.setattr(fetching, 'PROGRESS_BYTES', 500)
    source = Breaking(origin.folder, at=700, times=4 * ATTEMPTS)
    assert fetch(store, source).is_new
    assert len(source.starts) == 4 * ATTEMPTS + 1


def test_a_fetch_whose_progress_has_ended_gives_up(origin, store, wanted, monkeypatch):
    monkeypatch.setattr(fetching, 'PROGRESS_BYTES', 500)
    source, waits = Breaking(origin.folder, at=700), []

    def wait(duration_s: float) -> None:
        source.at = 0
        waits.append(duration_s)
        assert len(waits) <= ATTEMPTS, 'it goes on for ever'

    with pytest.raises(FetchError, match=f'{ATTEMPTS} attempts failed'):
        Fetch(store, source, sleep=wait).run('act')
    assert source.starts == [0, *[700] * ATTEMPTS]


def test_a_leftover_that_is_damaged_is_fetched_again_once(origin, store, wanted):
    refused(store, Breaking(origin.folder, at=700))
    (part,) = store.incoming.rglob(WEIGHTS)
    part.write_bytes(b'x' * 3000)
    source = Breaking(origin.folder, at=0, times=0)
    fetch(store, source)
    assert source.starts == [3000, 0]
    assert check_whole(store) == [wanted.id]


@pytest.mark.parametrize('what', ['longer', 'link', 'more'])
def test_a_leftover_of_another_shape_is_no_way_in(origin, store, wanted, tmp_path, what):
    refused(store, Breaking(origin.folder, at=700))
    (part,) = store.incoming.rglob(WEIGHTS)
    secret = tmp_path / 'secret'
    secret.write_text('secret')
    if what == 'longer':
        part.write_bytes(b'x' * 30_000)
    elif what == 'link':
        part.unlink()
        part.symlink_to(secret)
    else:
        part.with_name('added.py').write_text('')
    assert fetch(store, FolderSource(origin.folder)).is_new
    assert check_whole(store) == [wanted.id]
    assert secret.read_text() == 'secret'


def test_a_second_fetch_of_a_version_is_refused_while_one_runs(origin, store, wanted):
    source = FolderSource(origin.folder)

    def meanwhile(*_: object) -> None:
        with pytest.raises(VersionInUse, match=f'another process fetches {wanted.id}'):
            fetch(store, source)

    assert fetch(store, source, check=meanwhile).is_new
    assert check_whole(store) == [wanted.id]


def test_a_version_that_was_published_meanwhile_is_there_already(origin, store, wanted, tmp_path):
    def publish_too(*_: object) -> None:
        published(store, tmp_path / 'policy_1')

    done = fetch(store, FolderSource(origin.folder), check=publish_too)
    assert not done.is_new
    assert check_whole(store) == [wanted.id]
    assert not list(store.incoming.iterdir())


def test_what_the_caller_refuses_does_not_stay(origin, store, wanted):
    def refuse(folder, manifest):
        raise VersionError('not this one')

    with pytest.raises(VersionError, match='not this one'):
        fetch(store, FolderSource(origin.folder), check=refuse)
    assert not check_whole(store)
    assert not partial(store)


def test_a_full_disk_leaves_no_version_and_the_fetch_goes_on_later(origin, store, wanted):
    with files_of_at_most(10_000):
        text = refused(store, FolderSource(origin.folder), StoreError)
    assert 'Make room' in text
    assert fetch(store, FolderSource(origin.folder)).is_new
    assert check_whole(store) == [wanted.id]


def test_a_disk_without_room_is_noticed_before(origin, store, wanted, monkeypatch):
    usage = shutil.disk_usage(store.folder)._replace(free=1000)
    monkeypatch.setattr(fetching.shutil, 'disk_usage', lambda _: usage)
    assert 'make room' in refused(store, FolderSource(origin.folder), StoreError)
    assert not partial(store)


# servers that are not ours


@pytest.fixture
def lying(origin, store, wanted):
    """Return a function that fetches from a server which answers to weights as it is said."""

    def run(answer, limits: Limits = QUICK, **others: object):
        def whole(path: str, headers: dict[str, str]) -> bytes:
            if path == '/versions.json':
                return reply(json.dumps({'versions': [wanted.id]}).encode())
            name = path.removeprefix(f'/{wanted.id}/')
            if name == WEIGHTS:
                return answer(headers)
            return reply((origin.path(wanted.id) / name).read_bytes())

        with LyingServer(whole) as server:
            source = HttpSource(ServerAddress(server.url), limits)
            try:
                return fetch(store, source, **others)
            finally:
                run.requests = [h for path, h in server.requests if path.endswith(WEIGHTS)]

    return run


@pytest.fixture
def weights(origin, wanted):
    return (origin.path(wanted.id) / WEIGHTS).read_bytes()


def refuses(lying, store: VersionStore, answer) -> str:
    with pytest.raises(VersionError) as found:
        lying(answer)
    assert not check_whole(store)
    return str(found.value)


@pytest.mark.parametrize('status', ['301 Moved', '302 Found', '307 Temporary', '308 Permanent'])
def test_a_redirect_is_refused(lying, store, status):
    said = refuses(
        lying, store, lambda _: reply(b'', status, Location='http://169.254.169.254/latest')
    )
    assert "redirects to 'http://169.254.169.254/latest'" in said
    assert len(lying.requests) == 1


def test_a_server_that_sends_more_than_the_manifest_names_is_refused(lying, store, weights):
    assert 'the server sends 20001 bytes' in refuses(lying, store, lambda _: reply(weights + b'x'))


@pytest.mark.parametrize(
    'headers',
    [
        {'Content_Length': '1000000000000'},
        {'Content_Length': '-1'},
        {'Transfer_Encoding': 'chunked', 'Content_Length': ''},
        {'Content_Encoding': 'gzip'},
    ],
    ids=str,
)
def test_a_length_or_coding_that_is_not_expected_is_refused(lying, store, weights, headers):
    assert refuses(lying, store, lambda _: reply(weights, **headers))


@pytest.mark.parametrize(
    'given',
    ['bytes 0-19999/20000', 'bytes 701-19999/20000', 'bytes 700-19999/*', 'bytes 700-19999', ''],
)
def test_a_wrong_range_is_refused(lying, store, weights, given):
    def answer(headers: dict[str, str]) -> bytes:
        if 'range' not in headers:
            return reply(weights)[: -20_000 + 700]
        assert headers['range'] == 'bytes=700-'
        return reply(weights[700:], '206 Partial Content', Content_Range=given)

    assert 'Content-Range' in refuses(lying, store, answer)
    assert len(lying.requests) == 2


def test_a_range_with_other_bytes_has_the_wrong_hash(lying, store, weights):
    def answer(headers: dict[str, str]) -> bytes:
        if 'range' not in headers:
            return reply(weights)[: -20_000 + 700]
        other = b'x' * 19_300
        given = 'bytes 700-19999/20000'
        return reply(other, '206 Partial Content', Content_Range=given)

    assert 'nothing of it is used' in refuses(lying, store, answer)


def test_a_server_without_ranges_begins_the_file_again(lying, store, weights, wanted):
    ends = itertools.chain([-20_000 + 700], itertools.repeat(None))
    done = lying(lambda _: reply(weights)[: next(ends)])
    assert [each.get('range') for each in lying.requests] == [None, 'bytes=700-']
    assert check_whole(store) == [wanted.id]
    assert done.transferred_bytes == wanted.size_bytes + 700


@pytest.mark.parametrize('what', ['head', 'body', 'no answer', 'head forever'])
def test_a_server_that_stalls_is_left_after_some_attempts(lying, store, weights, what):
    whole = reply(weights)
    sent = {
        'head': whole[:10],
        'body': whole[:1000],
        'no answer': b'',
        'head forever': b'HTTP/1.1 100 Continue\r\n\r\n',
    }[what]
    said = refuses(lying, store, lambda _: sent + LyingServer.HANG)
    assert f'{ATTEMPTS} attempts failed' in said


def test_a_server_that_drips_is_left(store, origin, tmp_path, monkeypatch):
    """The clock is 1000 s later at each look."""
    monkeypatch.setattr(http_files, 'BLOCK_BYTES', 4096)
    published(origin, policy_folder(tmp_path / 'policy', size_bytes=100_000))
    clock = itertools.count(step=1000.0)
    server = StoreHttpServer(origin)
    try:
        source = HttpSource(ServerAddress(server.url), clock=lambda: float(next(clock)))
        assert 'bytes in 1000 s; 5 attempts failed' in refused(store, source)
    finally:
        server.close()


def test_a_busy_server_is_asked_again(lying, store, weights, wanted):
    replies = iter([reply(b'', '503 Service Unavailable'), reply(weights)])
    lying(lambda _: next(replies))
    assert check_whole(store) == [wanted.id]


def test_a_server_that_is_not_there_is_named(store):
    with LyingServer(lambda *_: b'') as server:
        url = server.url
    with pytest.raises(FetchError, match=f'{url}/versions.json: .*5 attempts failed'):
        fetch(store, HttpSource(ServerAddress(url), QUICK))


@pytest.mark.parametrize(
    'data',
    [b'{}', b'[]', b'{"versions": 1}', b'{"versions": ["../x"]}', b'{"versions": [1]}', b'<html>'],
)
def test_a_list_of_another_form_is_refused(store, data):
    with (
        LyingServer(lambda *_: reply(data)) as server,
        pytest.raises(FetchError, match='is not a list of versions'),
    ):
        fetch(store, HttpSource(ServerAddress(server.url), QUICK))


def test_a_manifest_without_an_end_is_refused(store, wanted):
    def answer(path: str, _: object) -> bytes:
        if path == '/versions.json':
            return reply(json.dumps({'versions': [wanted.id]}).encode())
        return reply(b' ' * (2 << 20))

    with LyingServer(answer) as server, pytest.raises(FetchError, match='more than 1048576'):
        fetch(store, HttpSource(ServerAddress(server.url), QUICK))


@pytest.mark.parametrize(
    'url',
    [
        'ftp://host',
        'http://',
        'http://user:password@host',
        'http://host/?a',
        'http://host:99999',
        'http://host/a b',
        'http://hö st',
        'http://[::1',
    ],
)
def test_an_address_of_another_form_is_refused(url):
    with pytest.raises(FetchError, match='the address must be http://HOST:PORT'):
        HttpSource(ServerAddress(url))


def test_an_address_that_others_can_read_has_a_warning():
    assert 'and the token' in ServerAddress('http://10.0.0.5:8320', token='x' * 20).warning
    assert not ServerAddress('http://127.0.0.1:8320').warning
    assert not ServerAddress('https://10.0.0.5').warning


def test_a_manifest_that_changed_at_the_source_continues_nothing(origin, store, wanted):
    refused(store, Breaking(origin.folder, at=700))
    rewritten_manifest(origin, wanted.id, '"note": ""', '"note": "new"')
    source = Breaking(origin.folder, at=0, times=0)
    fetch(store, source)
    assert source.starts == [0]
