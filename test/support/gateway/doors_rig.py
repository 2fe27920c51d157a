# SPDX-License-Identifier: Apache-2.0
"""The node gateway with its doors on real sockets, in the process of the test."""

from __future__ import annotations

import http.client
import json
from typing import Any

from lerobot_serve.gateway.node import GatewayNode
from lerobot_serve.ros.process.node_runtime import NodeRuntime

LIMIT_S = 30.0


class RunningNode:
    """The node with these parameters, until `close`. Used by the test's thread."""

    def __init__(self, parameters: dict[str, object]) -> None:
        words = [word for k, v in parameters.items() for word in ('-p', f'{k}:={v}')]
        self.runtime = NodeRuntime(['--ros-args', *words] if words else [])
        try:
            self.node = GatewayNode(self.runtime)
            self.runtime.add(self.node)
            self.runtime.start()
        except BaseException:
            self.runtime.close()
            raise

    def close(self) -> None:
        self.runtime.close()


class DoorsRig(RunningNode):
    """With real doors."""

    def __init__(self, *doors: str, **parameters: object) -> None:
        """Each parameter is one of the gateway; `__` in a name stands for the dot."""
        given = {'doors': f'[{", ".join(doors)}]', **{f'{door}.port': 0 for door in doors}}
        given |= {name.replace('__', '.'): value for name, value in parameters.items()}
        super().__init__(given)
        self.addresses = dict(zip(doors, self.node._loop.addresses, strict=True))

    @property
    def counters(self) -> Any:
        return self.node._counters

    def host_and_port(self, door: str) -> tuple[str, int]:
        host, port = self.addresses[door].rpartition('/')[2].rsplit(':', 1)
        return host, int(port)

    def act(self, body: dict[str, Any]) -> tuple[int, dict[str, Any], Any]:
        """Return status, content and headers of POST /act."""
        connection = http.client.HTTPConnection(*self.host_and_port('http'), timeout=LIMIT_S)
        try:
            headers = {'Content-Type': 'application/json'}
            connection.request('POST', '/act', json.dumps(body), headers)
            reply = connection.getresponse()
            return reply.status, json.loads(reply.read()), reply.headers
        finally:
            connection.close()
