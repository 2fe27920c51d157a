# SPDX-License-Identifier: Apache-2.0
"""A dashboard in the process of the test, and a viewer that applies its patches."""

from __future__ import annotations

from collections.abc import Callable
import http.client
import json
from pathlib import Path
import socket
import threading
from typing import Any
from urllib.parse import quote

from lerobot_serve.access.token_file import open_tokens
from lerobot_serve.ros.process.node_runtime import NodeRuntime
from lerobot_serve.tools.dashboard.node import DashboardNode
from lerobot_serve.tools.dashboard.settings import DashboardSettings
from lerobot_serve.zenoh.settings import ZenohSettings
from support.dashboard.merge_patch import applied
from support.waiting import wait_until

LIMIT_S = 30.0


class Viewer:
    """Reads a stream in a thread; `document` is what its page would show."""

    def __init__(self, port: int, path: str = '/api/stream') -> None:
        self.document: Any = {}
        self.events: list[tuple[str, Any]] = []
        self._socket = socket.create_connection(('127.0.0.1', port), LIMIT_S)
        self._socket.sendall(f'GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n'.encode())
        self._thread = threading.Thread(target=self._read, name='viewer', daemon=True)
        self._thread.start()

    def _read(self) -> None:
        event = ''
        self._socket.settimeout(None)
        for line in self._socket.makefile('rb'):
            if line.startswith(b'event: '):
                event = line[7:].decode().strip()
            if line.startswith(b'data: '):
                data = json.loads(line[6:])
                self.events.append((event, data))
                self.document = applied(self.document if event == 'patch' else {}, data)

    def wait(self, holds: Callable[[Any], Any], what: str) -> Any:
        """Return what `holds` of the document returns as soon as it is true."""
        return wait_until(lambda: self.document and holds(self.document), what, LIMIT_S)

    def wait_for_robot(self, node: str, what: str, **fields: object) -> Any:
        def found(document: Any) -> Any:
            row = document['robots'].get(node)
            return row and all(row.get(key) == value for key, value in fields.items()) and row

        return self.wait(found, what)

    def wait_for_incident(self, kind: str, severity: str, text: str = '') -> Any:
        return self.wait(
            lambda document: next(
                (
                    each
                    for each in document['incidents'].values()
                    if (each['kind'], each['severity']) == (kind, severity)
                    and text in each['text']
                ),
                None,
            ),
            f'an incident {kind} {severity} {text}',
        )

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()


class DashboardRig:
    """One dashboard; `close` ends it and its viewers."""

    def __init__(self, folder: Path, zenoh: ZenohSettings | None = None, **settings: Any) -> None:
        self._tokens = folder / 'tokens'
        self._runtime = NodeRuntime([])
        self._viewers: list[Viewer] = []
        self.node = DashboardNode(
            self._runtime,
            DashboardSettings(token_file=self._tokens, port=0, **settings),
            zenoh,
        )
        self._runtime.add(self.node)
        self._runtime.start()

    @property
    def port(self) -> int:
        return self.node.http.port

    def view(self, path: str = '/api/stream') -> Viewer:
        self._viewers.append(Viewer(self.port, path))
        return self._viewers[-1]

    def view_robot(self, node: str) -> Viewer:
        return self.view(f'/api/robots/stream?robot={quote(node, safe="")}')

    def get(self, path: str) -> tuple[int, bytes]:
        return self._ask('GET', path, None, {})

    def command(self, verb: str, target: str, **fields: Any) -> tuple[int, Any]:
        """Send a command; without `confirm` it is a preview."""
        tokens = open_tokens(self._tokens)
        headers = {
            'Content-Type': 'application/json',
            'Origin': f'http://127.0.0.1:{self.port}',
            'Authorization': f'Bearer {tokens.token_of(tokens.names[0])}',
        }
        body = json.dumps({'verb': verb, 'target': target, **fields})
        status, text = self._ask('POST', '/api/commands', body, headers)
        return status, json.loads(text)

    def begins(self, verb: str, target: str, **fields: Any) -> Any:
        """Preview and confirm a command that servers load a policy for."""
        return self.does(verb, target, 202, **fields)

    def does(self, verb: str, target: str, expected: int = 200, **fields: Any) -> Any:
        """
        Preview a command and confirm what it says until it is done; a state that changes between
        the two is a refusal, and is looked at again.
        """

        def done() -> Any:
            status, shown = self.command(verb, target, **fields)
            assert status == 200 and shown['effect'] == 'do', shown
            status, reply = self.command(verb, target, **fields, confirm=shown['text'])
            if status == 409 and 'the state has changed' in reply['error']:
                return None
            assert status == expected and reply['done'] is (status == 200), reply
            return reply

        return wait_until(done, f'{verb} is done', LIMIT_S)

    def _ask(
        self, method: str, path: str, body: str | None, headers: dict[str, str]
    ) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection('127.0.0.1', self.port, timeout=LIMIT_S)
        connection.request(method, path, body, headers)
        reply = connection.getresponse()
        try:
            return reply.status, reply.read()
        finally:
            connection.close()

    def close(self) -> None:
        for viewer in self._viewers:
            viewer.close()
        self._runtime.close()
        assert self._runtime.failure is None
