# SPDX-License-Identifier: Apache-2.0
"""The processes of a simulated fleet, what is seen of them, and waits that end when one dies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
import time
from typing import Any

from benchmarks.harness.processes import NodeProcesses
from lerobot_serve.contract.records import ReplicaState, SlotState
from lerobot_serve.demo import steady_time
from lerobot_serve.demo.fleet_names import ROUTER, VERSIONS
from lerobot_serve.demo.results.scoreboard import Scoreboard
from lerobot_serve.demo.tour.link import DemoLink
from lerobot_serve.errors import UserError
from lerobot_serve.ros.package_share import shared_file
from lerobot_serve.tools.operate.fleet_client import FleetClient

POLL_S = 0.1
SLOT = 'prod'


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One process."""

    name: str
    executable: str
    namespace: str = ''
    parameters: dict[str, Any] = field(default_factory=dict)


def server(name: str, version: str, link: DemoLink) -> ProcessSpec:
    """Return a policy server with a version of the demo's policy."""
    policy = shared_file('config/policies') / VERSIONS[version]
    parameters = {
        'policy_kind': 'builtin',
        'policy_path': policy,
        'policy_name': version,
        'slot': SLOT,
        'cpu_threads': 1,
        'status_period_s': 0.2,
        # another version is loaded at run time
        'policy_root': policy.parent,
        **link.listening(name),
    }
    return ProcessSpec(name, 'policy_server', f'/{name}', parameters)


class FleetStage:
    """Used by the main thread. An operation that fails raises UserError."""

    def __init__(
        self, processes: NodeProcesses, client: FleetClient, board: Scoreboard, folder: Path
    ) -> None:
        self.processes, self.client, self.board = processes, client, board
        self._folder = folder
        self._killed: set[str] = set()

    def start(self, part: ProcessSpec) -> None:
        """Start a process, also one that was killed."""
        self.processes.start(
            part.name, part.executable, namespace=part.namespace, **part.parameters
        )
        self._killed.discard(part.name)

    def kill(self, name: str) -> float:
        """End a process with SIGKILL; return when, in seconds since 1970."""
        process = self.processes.processes[name]
        self._killed.add(name)
        now_s = steady_time.now_s()
        process.kill()
        process.wait()
        return now_s

    def replicas(self, slot: str) -> tuple[ReplicaState, ...]:
        """Return the servers of a slot as the router reports them, none before its first state."""
        router = self.client.last_router(ROUTER)
        found = router.slot(slot) if router else None
        return (found or SlotState(slot)).replicas

    def replica_state(self, slot: str, server: str) -> str:
        """Return the state of a server at the router, empty before the first state."""
        return next((r.state.name for r in self.replicas(slot) if r.server == server), '')

    def wait(self, until: Callable[[], object], limit_s: float, what: str) -> None:
        """Wait until a condition holds."""
        begin_s = time.monotonic()
        while not until():
            self._check_processes()
            if time.monotonic() - begin_s > limit_s:
                robots = ', '.join(f'{n} {r.state}' for n, r in self.board.robots.items())
                raise UserError(f'{what}: not within {limit_s:g} s; {robots}')
            self.board.changed.wait(POLL_S)
            self.board.changed.clear()

    def _check_processes(self) -> None:
        for name, code in self.processes.ended().items():
            if name not in self._killed:
                raise UserError(
                    f'{name} ended with status {code}, last log line: '
                    f'{self.processes.last_line(name)}; see {self._folder}/{name}.log'
                )
