# SPDX-License-Identifier: Apache-2.0
"""The HTTP server of a store reads what manifests name, and nothing else, in few threads."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
from urllib.parse import urlsplit

import pytest
from support.versions.version_rig import version
from support.waiting import wait_until

from lerobot_serve.access import token_file
from lerobot_serve.access.token_file import Tokens
from lerobot_serve.versions.errors import FetchError, StoreError, VersionInUse
from lerobot_serve.versions.store import VersionStore
from lerobot_serve.versions.transfer import serving
from lerobot_serve.versions.transfer.fetching import Fetch
from lerobot_serve.versions.transfer.http_files import HttpSource, ServerAddress
from lerobot_serve.versions.transfer.places import Places
from lerobot_serve.versions.transfer.serving import HttpSettings, StoreHttpServer

TOKEN = 't' * 32
TOKENS = Tokens({'robot_1': TOKEN})


@pytest.fixture
def store(tmp_path):
    return VersionStore.make(tmp_path / 'origin')


@pytest.fixture
def manifest(store, tmp_path):
    return version(store, tmp_path)


@pytest.fixture
def start(store):
    """Return a function that starts a server of the store."""
    started: list[StoreHttpServer] = []

    def run(log=lambda line: None, **settings: object) -> StoreHttpServer:
        started.append(StoreHttpServer(store, HttpSettings(**settings), log))
        return started[-1]

    yield run
    for each in started:
        each.close()


@pytest.fixture
def ask(start, manifest):
    server = start()

    def run(path: str, method: str = 'GET', **headers: str) -> tuple[int, dict[str, str], bytes]:
        address = urlsplit(server.url)
        connection = http.client.HTTPConnection(address.hostname, address.port, timeout=30)
        try:
            connection.putrequest(method, path, skip_accept_encoding=True)
            for name, value in headers.items():
                connection.putheader(name, value)
            connection.endheaders()
            reply = connection.getresponse()
            return reply.status, dict(reply.headers), reply.read()
        finally:
            connection.close()

    return run


def test_lists_and_manifests_are_served(ask, store, manifest):
    assert json.loads(ask('/versions.json')[2]) == {'versions': [manifest.id]}
    assert ask(f'/{manifest.id}/version.json')[2] == manifest.encoded()
    status, headers, body = ask(f'/{manifest.id}/meta/info.json')
    assert (status, body) == (200, b'{}')
    assert headers['ETag'] == f'"{manifest.file("meta/info.json").sha256}"'
    status, head, body = ask(f'/{manifest.id}/meta/info.json', 'HEAD')
    assert (status, body) == (200, b'')
    assert head['Content-Length'] == headers['Content-Length'] == '2'


@pytest.mark.parametrize(
    'path',
    [
        '/',
        '/{id}',
        '/{id}/',
        '/{id}/../{id}/config.json',
        '/{id}/%2e%2e/{id}/config.json',
        '/{id}/meta',
        '/{id}/secret.txt',
        '/{id}//etc/passwd',
        '//etc/passwd',
        '/../etc/passwd',
        '/.store/lock',
        '/.store/pins/x',
        '/act@0000000000000000/version.json',
        '/{id}/config.json%00',
        '/%ff',
    ],
)
def test_what_no_manifest_names_is_not_found(ask, store, manifest, path):
    (store.path(manifest.id) / 'secret.txt').write_text('secret')
    status, _, body = ask(path.format(id=manifest.id))
    assert (status, body) == (404, b'')


def test_a_version_under_a_name_that_is_no_id_is_not_found(ask, store, manifest):
    shutil.copytree(store.path(manifest.id), store.folder / 'backup')
    for name in ('version.json', 'config.json'):
        assert ask(f'/backup/{name}')[0] == 404


def test_a_link_in_place_of_a_file_is_not_found(ask, store, manifest, tmp_path):
    file = store.path(manifest.id) / 'config.json'
    file.unlink()
    file.symlink_to('/etc/hostname')
    assert ask(f'/{manifest.id}/config.json')[0] == 404


@pytest.mark.parametrize('method', ['POST', 'PUT', 'DELETE'])
def test_nothing_is_written(ask, manifest, method):
    assert ask(f'/{manifest.id}/config.json', method)[0] == 501


@pytest.mark.parametrize(
    ('given', 'status', 'first', 'end'),
    [
        ('bytes=0-', 206, 0, 20_000),
        ('bytes=19999-', 206, 19_999, 20_000),
        ('bytes=5-9', 206, 5, 10),
        ('bytes=5-999999', 206, 5, 20_000),
        ('bytes=-5', 200, 0, 20_000),
        ('bytes=0-1,5-9', 200, 0, 20_000),
        ('items=1-2', 200, 0, 20_000),
        ('bytes=' + '9' * 30 + '-', 200, 0, 20_000),
    ],
)
def test_a_range_is_that_of_the_file(ask, store, manifest, given, status, first, end):
    whole = (store.path(manifest.id) / 'model.safetensors').read_bytes()
    found, headers, body = ask(f'/{manifest.id}/model.safetensors', Range=given)
    assert (found, body) == (status, whole[first:end])
    if status == 206:
        assert headers['Content-Range'] == f'bytes {first}-{end - 1}/20000'


@pytest.mark.parametrize('given', ['bytes=20000-', 'bytes=9-5'])
def test_a_range_that_the_file_does_not_have_is_said(ask, manifest, given):
    status, headers, body = ask(f'/{manifest.id}/model.safetensors', Range=given)
    assert (status, body) == (416, b'')
    assert headers['Content-Range'] == 'bytes */20000'


def test_without_a_token_nothing_is_read(start, store, manifest, tmp_path):
    url = start(tokens=TOKENS).url
    target = VersionStore.make(tmp_path / 'store')
    for token, sentence in (('', 'wants a token'), ('w' * 32, 'does not know the token')):
        with pytest.raises(FetchError, match=sentence):
            Fetch(target, HttpSource(ServerAddress(url, token))).run('act')
    assert Fetch(target, HttpSource(ServerAddress(url, TOKEN))).run('act').is_new


def test_a_port_that_is_not_encrypted_is_said(start):
    address = ServerAddress(start().url.replace('http:', 'https:'))
    with pytest.raises(FetchError, match='is not encrypted; give http://'):
        HttpSource(address).ids()


def connected(server: StoreHttpServer) -> socket.socket:
    address = urlsplit(server.url)
    return socket.create_connection((address.hostname, address.port), 30)


def test_silent_connections_keep_no_reader_out(start, manifest):
    server = start(connections=2, tokens=TOKENS)
    silent = [connected(server) for _ in range(2)]
    try:
        for _ in range(3):
            assert HttpSource(ServerAddress(server.url, TOKEN)).ids() == [manifest.id]
        # the oldest gave way
        assert silent[0].recv(100) == b''
    finally:
        for each in silent:
            each.close()


def test_replies_to_wrong_tokens_wait_and_keep_no_reader_out(start, manifest, monkeypatch):
    monkeypatch.setattr(token_file, 'FIRST_DELAY_S', 60.0)
    monkeypatch.setattr(token_file, 'LONGEST_DELAY_S', 60.0)
    server = start(connections=2, tokens=TOKENS)
    request = b'GET /versions.json HTTP/1.1\r\nAuthorization: Bearer wrong\r\n\r\n'
    wrong = [connected(server) for _ in range(2)]
    try:
        for each in wrong:
            each.sendall(request)
        assert HttpSource(ServerAddress(server.url, TOKEN)).ids() == [manifest.id]
        # no reply to a guess, but the end of its connection
        assert wrong[0].recv(100) == b''
    finally:
        for each in wrong:
            each.close()


def test_connections_that_were_let_in_keep_their_places():
    places = Places(2)
    one, two, three, four = (socket.socket() for _ in range(4))
    try:
        assert places.take(one)
        places.let_in(one)
        assert places.take(two)
        assert places.take(three)
        assert places.wait_until_closed(two, 0.0)
        assert not places.wait_until_closed(one, 0.0)
        places.let_in(three)
        assert not places.take(four)
        places.give_back(one)
        assert places.take(four)
    finally:
        for each in (one, two, three, four):
            each.close()


def test_connections_are_bounded_and_idle_ones_end(start, manifest, monkeypatch):
    monkeypatch.setattr(serving, 'HEAD_LIMIT_S', 1.0)
    lines: list[str] = []
    server = start(lines.append, connections=2)
    idle = [connected(server) for _ in range(2)]
    try:
        for each in idle:
            assert each.recv(100) == b''
    finally:
        for each in idle:
            each.close()

    def answers() -> bool:
        try:
            return HttpSource(ServerAddress(server.url)).ids() == [manifest.id]
        except FetchError:
            return False

    wait_until(answers, 'places are free again')
    assert lines[-1] == '127.0.0.1 GET /versions.json 200'


def test_a_version_is_not_deleted_while_it_is_read(start, store, manifest):
    source = HttpSource(ServerAddress(start().url))
    # more than the buffers of a connection hold
    folder = store.path(manifest.id)
    with source.open(manifest.id, manifest.file('model.safetensors'), 0) as opened:
        assert sum(map(len, opened.blocks)) == 20_000
    wait_until(lambda: deleted(store, manifest.id), 'the reply has ended')
    assert not folder.exists()


def deleted(store: VersionStore, version_id: str) -> bool:
    try:
        store.delete(version_id)
    except VersionInUse:
        return False
    return True


def test_a_port_in_use_is_said(start, store):
    port = urlsplit(start().url).port
    with pytest.raises(StoreError, match=f'port {port}: .*use another --port'):
        start(port=port)
