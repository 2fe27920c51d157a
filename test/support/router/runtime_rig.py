# SPDX-License-Identifier: Apache-2.0
"""A router core with its threads, in front of servers that are played."""

from __future__ import annotations

import threading
from types import SimpleNamespace

from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.records import ServerStatus
from lerobot_serve.router.data_path.replica_transport import ReplicaTransport
from lerobot_serve.router.monitoring.health_monitor import HealthMonitor
from lerobot_serve.router.runtime import RouterRuntime, ThreadGroup
from support.router.dispatch_rig import status_of
from support.router.router_core_rig import RoutingRig

LIMIT_S = 10.0


class Replicas:
    """Servers as ros.replica_links has them; their thread only waits for its end."""

    def __init__(self) -> None:
        self.awake = threading.Event()
        self.there, self.two, self.closed = True, '', False
        self.gone: set[str] = set()
        self.on_reply = self.on_status = None

    def listen(self, on_reply, on_status) -> None:
        self.on_reply, self.on_status = on_reply, on_status

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self.awake.wait(LIMIT_S)
            self.awake.clear()

    def wake(self) -> None:
        self.awake.set()

    def is_available(self, server: str) -> bool:
        return self.there and server not in self.gone

    def link_problem(self, server: str) -> str:
        return self.two

    def close(self) -> None:
        self.closed = True


class RuntimeRig(RoutingRig):
    """A router with its threads; what it publishes and warns of is kept."""

    def __init__(self, folder, **parameters: object) -> None:
        self.sent: list[bytes] = []
        self.unknown: list[Chunk] = []
        super().__init__(folder, **parameters)
        self.topics: list[object] = self.published
        self.warned: list[str] = self.told
        self.threads: list[threading.Thread] = []
        self.behind, self.group = Replicas(), ThreadGroup(self.start)
        self.warned.clear()

    def make_transport(self) -> ReplicaTransport:
        replies = SimpleNamespace(send=lambda topic, raw: self.sent.append(raw) or True)
        clients = {
            name: SimpleNamespace(send=lambda raw, name=name: self.outside.send(name, raw))
            for name in self.clients
        }
        return ReplicaTransport(clients, replies.send, self.drops, self.unknown.append)

    def routing(self) -> RouterRuntime:
        return RouterRuntime(self.core, self.behind, self.group, self.context)

    def start(self, name: str, target, wake) -> threading.Thread:
        thread = threading.Thread(target=target, name=name, daemon=True)
        self.threads.append(thread)
        thread.start()
        return thread

    def monitor(self) -> HealthMonitor:
        return HealthMonitor(self.core, self.behind, self.context)

    def of_kind(self, kind: type) -> list:
        return [each for each in self.topics if isinstance(each, kind)]


def status(server: str, policy: str = 'act@2', slot: str = 'a') -> ServerStatus:
    return status_of(policy, slot, load=0.5, active_sessions=1, max_sessions=4)
