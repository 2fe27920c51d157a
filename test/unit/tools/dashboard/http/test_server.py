# SPDX-License-Identifier: Apache-2.0
"""The server over real sockets, with a document of the test: streams, refusals, stuck viewers."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
import http.client
import json
import os
from pathlib import Path
import socket
import time
from typing import Any

import pytest
from support.dashboard.merge_patch import applied
from support.waiting import wait_until

from lerobot_serve.access import connections
from lerobot_serve.access.token_file import Tokens
from lerobot_serve.errors import UserError
from lerobot_serve.tools.dashboard.document.fleet_document import FleetDocument
from lerobot_serve.tools.dashboard.evidence import Captures
from lerobot_serve.tools.dashboard.http import application, viewers
from lerobot_serve.tools.dashboard.http.application import Application, CommandsRoute, Sources
from lerobot_serve.tools.dashboard.http.guards import read_page
from lerobot_serve.tools.dashboard.http.server import HttpServer
from lerobot_serve.tools.dashboard.planned_commands import Reply

LIMIT_S = 20.0
TOKEN = 'a' * 20
HOSTILE = '<script>alert(1)</script>\r\n\r\nevent: x\u2028'
ROW = {'name': HOSTILE, 'state': 'STREAMING'}
COMMAND = {'verb': 'split', 'target': '/policy_router', 'percent': 80}


class Rig:
    """A dashboard without ROS."""

    def __init__(self, folder: Path, *, is_loopback: bool = True, port: int = 0) -> None:
        self.document = FleetDocument({'host': 'gpu1'}, 0)
        self.document.put('robots', '/robot_7', ROW)
        first = self.document.turn(1000)
        assert first
        self.commands: list[Any] = []
        self.threads = ThreadPoolExecutor(4)
        sources = Sources(
            evidence=lambda router: {'t_ms': []} if router == '/policy_router' else None,
            requests=lambda robot: None,
            want_robots=lambda robots: None,
            explain=lambda number: {'id': number} if number == '1' else None,
            captures=Captures(folder),
        )
        self.route = CommandsRoute(
            Tokens({'anna': TOKEN}), self.run, self.threads, is_private=is_loopback
        )
        self.app = Application(
            read_page(),
            first.document,
            frozenset({'localhost'}),
            sources,
            self.route,
            self.threads,
        )
        self.failures: list[Exception] = []
        self.server = HttpServer(self.app, '127.0.0.1', port, self.failures.append)
        self.server.start()

    def run(self, *command: Any) -> Reply:
        self.commands.append(command)
        return Reply(200, {'done': False, 'text': 'ok'})

    def turn(self, now_ms: int, **row: Any) -> None:
        self.document.put('robots', '/robot_7', {**ROW, **row})
        if turn := self.document.turn(now_ms):
            self.server.call(self.app.on_turn, turn)

    def ask(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, bytes, dict[str, str]]:
        connection = http.client.HTTPConnection('127.0.0.1', self.server.port, timeout=LIMIT_S)
        data = json.dumps(body) if body is not None and not isinstance(body, bytes) else body
        connection.request(method, path, data, headers)
        reply = connection.getresponse()
        found = reply.status, reply.read(), dict(reply.getheaders())
        connection.close()
        return found

    def post(self, body: Any = COMMAND, **headers: str) -> tuple[int, Any]:
        given = {
            'Content-Type': 'application/json',
            'Origin': f'http://127.0.0.1:{self.server.port}',
            'Authorization': f'Bearer {TOKEN}',
            **{name.replace('_', '-'): value for name, value in headers.items()},
        }
        status, text, _ = self.ask('POST', '/api/commands', body, **given)
        return status, json.loads(text)

    def viewer(self, path: str = '/api/stream', buffer_bytes: int = 0) -> socket.socket:
        stream = socket.socket()
        if buffer_bytes:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        stream.settimeout(LIMIT_S)
        stream.connect(('127.0.0.1', self.server.port))
        stream.sendall(f'GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n'.encode())
        return stream

    def close(self) -> None:
        self.server.close()
        self.threads.shutdown()
        assert not self.failures


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Rig]:
    found = Rig(tmp_path)
    yield found
    found.close()


class Events:
    """Reads the events of a stream."""

    def __init__(self, stream: socket.socket) -> None:
        self._file = stream.makefile('rb')

    def next(self) -> tuple[str, Any]:
        event = ''
        for line in self._file:
            if line.startswith(b'event: '):
                event = line[7:].decode().strip()
            if line.startswith(b'data: '):
                return event, json.loads(line[6:])
        raise EOFError


def test_a_viewer_gets_the_document_and_its_patches(site):
    with site.viewer() as stream:
        events = Events(stream)
        name, document = events.next()
        assert name == 'snapshot' and document['robots']['/robot_7'] == ROW
        site.turn(2000, state='STALLED')
        name, patch = events.next()
        assert name == 'patch' and patch['robots'] == {'/robot_7': {'state': 'STALLED'}}
        assert applied(document, patch) == site.document.newest


def test_two_viewers_get_the_same_and_one_that_leaves_is_forgotten(site):
    with site.viewer() as one:
        assert Events(one).next()[0] == 'snapshot'
        with site.viewer() as two:
            assert Events(two).next()[0] == 'snapshot'
            assert site.app.viewer_count == 2
        wait_until(
            lambda: (site.turn(int(time.monotonic() * 1e3)), site.app.viewer_count == 1)[1], 'one'
        )


def test_a_stuck_viewer_costs_nobody_anything_and_gets_a_snapshot_later(site):
    with site.viewer(buffer_bytes=4096) as stuck, site.viewer() as other:
        events = Events(other)
        events.next()
        for number in range(120):
            site.turn(2000 + 1000 * number, text=f'{number}' + 'x' * 30_000, number=number)
            assert events.next()[1]['robots']['/robot_7']['number'] == number
        assert site.app.fleet.counts.behind >= 1
        # it reads again: what it skipped is in a snapshot, and the stream continues from there
        late, shown = Events(stuck), None
        while True:
            name, data = late.next()
            shown = data if name == 'snapshot' else applied(shown, data)
            if shown['robots']['/robot_7'].get('number') == 119:
                break
        assert shown == site.document.newest


def test_a_viewer_that_reads_nothing_is_disconnected(site, monkeypatch):
    monkeypatch.setattr(viewers, 'WRITE_LIMIT_S', 0.2)
    with site.viewer(buffer_bytes=4096):
        wait_until(lambda: site.app.viewer_count == 1, 'it views')

        def is_disconnected() -> bool:
            now_s = time.monotonic()
            # another text each time: a patch has only what changed
            site.turn(int(now_s * 1e3), text=f'{now_s}' + 'x' * 100_000)
            return site.app.viewer_count == 0

        wait_until(is_disconnected, 'it is disconnected')
        assert site.app.fleet.counts.disconnected == 1


def test_too_many_viewers_are_refused_with_a_sentence(site, monkeypatch):
    monkeypatch.setattr(application, 'VIEWERS', 1)
    with site.viewer() as stream:
        Events(stream).next()
        status, text, _ = site.ask('GET', '/api/stream')
        assert status == 503 and 'limit' in json.loads(text)['error']
        assert site.app.fleet.counts.refused == 1


def test_a_connection_that_asks_nothing_is_closed(site, monkeypatch):
    monkeypatch.setattr(connections, 'HEAD_LIMIT_S', 0.5)
    with socket.create_connection(('127.0.0.1', site.server.port)) as idle:
        idle.sendall(b'GET / HTTP/1.1\r\nHost: loc')
        idle.settimeout(LIMIT_S)
        with pytest.raises(ConnectionResetError):
            idle.recv(1)
            idle.recv(1)
            raise ConnectionResetError
    wait_until(lambda: site.app.connections.closed == 1, 'it is counted')


def test_a_page_is_sent_with_a_policy_that_allows_its_own_scripts_alone(site):
    status, _, headers = site.ask('GET', '/')
    policy = headers['Content-Security-Policy']
    assert status == 200 and "default-src 'none'" in policy and "'sha256-" in policy
    assert 'unsafe' not in policy and "frame-ancestors 'none'" in policy
    assert headers['X-Content-Type-Options'] == 'nosniff'
    assert headers['Referrer-Policy'] == 'no-referrer' and headers['Cache-Control'] == 'no-store'


@pytest.mark.parametrize('path', ['/', '/api/stream', '/healthz', '/api/incidents?id=1'])
def test_a_foreign_host_name_gets_nothing(site, path):
    status, text, _ = site.ask('GET', path, Host='evil.example')
    assert status == 421 and 'host name' in json.loads(text)['error']


@pytest.mark.parametrize(
    ('path', 'status'),
    [
        ('/healthz', 200),
        ('/api/routers/history?router=%2Fpolicy_router', 200),
        ('/api/routers/history?router=%2Fnone', 404),
        ('/api/routers/history', 400),
        ('/api/incidents?id=1', 200),
        ('/api/incidents?id=2', 404),
        ('/api/robots/stream?robot=%2Fnone', 404),
        ('/api/robots/image?robot=%2Frobot_7&camera=top&seq=1', 404),
        ('/api/captures?name=..%2F..%2Fetc%2Fpasswd', 404),
        ('/nothing', 404),
        ('/../../etc/passwd', 404),
        ('/api/commands', 405),
    ],
)
def test_each_route_replies_with_a_sentence(site, path, status):
    found, text, _ = site.ask('GET', path)
    assert found == status, text
    if status >= 400:
        assert json.loads(text)['error']


@pytest.mark.parametrize(
    ('headers', 'status'),
    [
        ({}, 200),
        ({'Content_Type': 'text/plain'}, 415),
        ({'Origin': 'http://evil.example'}, 403),
        ({'Origin': ''}, 403),
        ({'Authorization': ''}, 401),
        ({'Authorization': f'Basic {TOKEN}'}, 401),
        ({'Authorization': 'Bearer wrong'}, 401),
    ],
)
def test_a_command_needs_type_origin_and_token(site, headers, status):
    found, reply = site.post(**headers)
    assert found == status, reply
    assert bool(site.commands) == (status == 200)
    if status == 200:
        assert site.commands[0][1:] == ('anna', '127.0.0.1')
    else:
        assert reply['error'] and TOKEN not in reply['error']


def test_wrong_tokens_are_counted_and_slower_each_time(site):
    for _ in range(3):
        site.post(Authorization='Bearer wrong')
    assert site.route.wrong_tokens.total == 3
    begin_s = time.monotonic()
    assert site.post(Authorization='Bearer wrong')[0] == 401
    assert time.monotonic() - begin_s >= 1.0
    assert site.post()[0] == 200


@pytest.mark.parametrize(
    'body', [b'', b'{', b'[]', b'\xff\xfe', b'null', b'[' * 9000, b'{"verb":"robot pause"}']
)
def test_a_body_that_is_no_command_is_refused(site, body):
    status, reply = site.post(body)
    assert status == 400 and reply['error'] and not site.commands


def test_a_large_body_is_refused(site):
    status, reply = site.post({**COMMAND, 'reason': 'x' * 200_000})
    assert status == 413 and '16 KiB' in reply['error'] and not site.commands


def test_over_the_network_without_tls_acting_is_off(tmp_path):
    found = Rig(tmp_path, is_loopback=False)
    try:
        status, reply = found.post()
        assert status == 403 and '--tls-certificate' in reply['error'] and not found.commands
        assert found.ask('GET', '/')[0] == 200
    finally:
        found.close()


@pytest.mark.parametrize(
    'head', [b'\0\0\0\0\r\n\r\n', b'GET\r\n\r\n', b'GET / HTTP/9.9\r\n\r\n', b'x' * 20_000]
)
def test_malformed_requests_harm_nothing(site, head):
    with socket.create_connection(('127.0.0.1', site.server.port)) as stream:
        stream.settimeout(LIMIT_S)
        stream.sendall(head)
        stream.shutdown(socket.SHUT_WR)
        reply = stream.recv(4096)
        assert not reply or b' 400 ' in reply.split(b'\r\n')[0]
    assert site.ask('GET', '/healthz')[0] == 200


def test_hostile_texts_leave_as_json_alone(site):
    with site.viewer() as stream:
        data = stream.recv(65536)
        while b'robot_7' not in data:
            data += stream.recv(65536)
    assert b'\r\n\r\nevent: x' not in data.partition(b'\r\n\r\n')[2]
    assert HOSTILE.encode() not in data


def test_a_capture_is_downloaded_and_a_link_is_not(site, tmp_path):
    name = '20260730T101500.125Z-robot_7-12-not_finite.safetensors'
    (tmp_path / name).write_bytes(b'x' * 500_000)
    status, data, headers = site.ask('GET', f'/api/captures?name={name}')
    assert status == 200 and data == b'x' * 500_000
    assert name in headers['Content-Disposition']
    link = name.replace('12', '13')
    os.symlink('/etc/passwd', tmp_path / link)
    assert site.ask('GET', f'/api/captures?name={link}')[0] == 404


def test_a_port_in_use_is_one_sentence_with_a_remedy(site, tmp_path):
    with pytest.raises(UserError, match='use another --port'):
        Rig(tmp_path, port=site.server.port)


def test_closing_ends_all_viewers(tmp_path):
    found = Rig(tmp_path)
    with found.viewer() as stream:
        Events(stream).next()
        found.close()
        while stream.recv(65536):
            pass
