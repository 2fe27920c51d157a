# SPDX-License-Identifier: Apache-2.0
"""The node gateway with its doors on real sockets, in the process of the test."""

from __future__ import annotations

import http.client
import json
import re
from typing import Any

from support.gateway.node_rig import LIMIT_S, RunningGateway


class DoorsRig(RunningGateway):
    """See the module."""

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


def start_with_camera(router_rig: Any) -> None:
    """Start a server whose policy looks at a camera."""
    router_rig.fleet.start(
        'a',
        'policy_server',
        namespace='/a',
        policy_kind='null',
        policy_path='joints=6,chunk=30,cameras=front:48x64,fps=30',
    )


def start_process(rig: Any, door: str, **parameters: object) -> str:
    """Start a gateway in a process of its own; return the address of its door."""
    given = {f'{door}.{name}': value for name, value in {'port': 0, **parameters}.items()}
    rig.fleet.start('gateway', 'gateway', server='/policy_router', doors=f"['{door}']", **given)
    found = rig.wait(
        lambda: re.search(rf'door {door}: (?:\w+://)?(\S+)', rig.log('gateway')), 'the door'
    )
    return str(found[1])
