# SPDX-License-Identifier: Apache-2.0
"""The processes of a simulated fleet, what is seen of them, and waits that end when one dies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
import time
from typing import Any

from lerobot_serve.contract.records import ReplicaState, SlotState
from lerobot_serve.demo import steady_time
from lerobot_serve.demo.process_specs import ROUTER
from lerobot_serve.demo.results.scoreboard import Scoreboard
from lerobot_serve.errors import UserError
from lerobot_serve.tools.operate.fleet_client import FleetClient
from lerobot_serve.tools.processes.node_processes import NodeProcesses

POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One process."""

    name: str
    executable: str
    namespace: str = ''
    parameters: dict[str, Any] = field(default_factory=dict)


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
