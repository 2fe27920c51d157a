# SPDX-License-Identifier: Apache-2.0
"""What the edge writes to its log."""

from __future__ import annotations

from lerobot_serve.edge.observability.change_log import ChangeLog
from lerobot_serve.edge.session.connection import Connection, ConnectionEvent

S = 1_000_000_000


class Logged:
    def __init__(self) -> None:
        self.now_ns, self.lines = 0, []
        self.log = ChangeLog(
            info=lambda text: self.lines.append(f'I {text}'),
            warning=lambda text: self.lines.append(f'W {text}'),
            error=lambda text: self.lines.append(f'E {text}'),
            clock=lambda: self.now_ns,
        )
        self.connection = Connection(lambda: self.now_ns, on_change=self.log.changed)

    def poll(self) -> list[str]:
        before = len(self.lines)
        self.log.poll(self.connection.status, ('/a', '/b'))
        return self.lines[before:]


def test_a_change_is_logged_once_with_its_reason():
    logged = Logged()
    assert logged.poll() == []
    logged.connection.handle(ConnectionEvent.CHUNK_MERGED, '')
    logged.connection.handle(ConnectionEvent.REQUEST_FAILED, 'no reply within 5 s')
    assert logged.poll() == [
        'I CONNECTING -> STREAMING',
        'W STREAMING -> DEGRADED: no reply within 5 s',
    ]
    assert logged.poll() == []
    logged.connection.handle(ConnectionEvent.SESSION_LOST, '/a: gone')
    logged.connection.handle(ConnectionEvent.OFFLINE_TOO_LONG, 'no session for 60 s')
    assert logged.poll() == [
        'W DEGRADED -> RECONNECTING: /a: gone',
        'E RECONNECTING -> DEAD: no session for 60 s',
    ]


def test_a_state_to_and_fro_is_told_once_and_then_counted():
    logged = Logged()
    logged.connection.handle(ConnectionEvent.CHUNK_MERGED, '')
    logged.poll()
    for _ in range(182):
        logged.connection.handle(ConnectionEvent.QUEUE_EMPTY, 'action queue empty')
        logged.connection.handle(ConnectionEvent.CHUNK_MERGED, '')
        logged.poll()
    assert len(logged.lines) == 3
    logged.now_ns = 10 * S
    assert logged.poll() == [
        'W STREAMING -> STALLED: action queue empty (181 times in 10 s)',
        'I STALLED -> STREAMING (181 times in 10 s)',
    ]


def test_refusals_without_a_change_of_state_are_told_when_their_reason_changes():
    logged = Logged()
    logged.poll()
    for _ in range(45):
        logged.connection.handle(ConnectionEvent.SESSION_LOST, '/a: full')
        logged.poll()
    logged.connection.handle(ConnectionEvent.INCOMPATIBLE, '/a: arm_0.pos')
    logged.poll()
    assert logged.lines == ['W CONNECTING: /a: full', 'W CONNECTING: /a: arm_0.pos']


def test_what_is_wrong_before_the_first_poll_is_logged():
    logged = Logged()
    logged.connection.handle(ConnectionEvent.SESSION_LOST, '/a: not there')
    assert logged.poll() == ['W CONNECTING: /a: not there']
    assert logged.poll() == []


def test_waiting_for_a_server_is_said_once_and_not_where_one_is_found():
    waiting, found = Logged(), Logged()
    for logged in (waiting, found):
        assert logged.poll() == []
        logged.now_ns = S
        assert logged.poll() == []
    found.connection.handle(ConnectionEvent.CHUNK_MERGED, '')
    found.poll()
    for now_s in (4, 5, 600):
        for logged in (waiting, found):
            logged.now_ns = now_s * S
            logged.poll()
    assert waiting.lines == ['I waiting for /a, /b']
    assert found.lines == ['I CONNECTING -> STREAMING']
