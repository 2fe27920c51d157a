# SPDX-License-Identifier: Apache-2.0
"""Operations of the phases: start, kill, load a policy, wait. The main thread."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
import time

from lerobot_serve.demo import process_specs, steady_time
from lerobot_serve.demo.node import DemoMonitor
from lerobot_serve.demo.scoreboard import Scoreboard
from lerobot_serve.demo.screen import Screen
from lerobot_serve.ros.process.node_runtime import UserError
from lerobot_serve.tools.processes.node_processes import NodeProcesses

POLL_S = 0.1


class PhaseContext:
    """Used by the main thread. An operation that fails raises UserError."""

    def __init__(
        self,
        fleet: NodeProcesses,
        monitor: DemoMonitor,
        screen: Screen,
        folder: Path,
        policies: Path,
        plan: tuple[str, ...],
        seed: int,
    ) -> None:
        self.fleet, self.node, self.screen = fleet, monitor, screen
        self.board: Scoreboard = monitor.board
        self.folder, self.plan = folder, plan
        self._policies, self._seed = policies, seed
        self._killed: set[str] = set()
        self.started_s = time.monotonic()

    @property
    def traces(self) -> Path:
        return self.folder / 'traces'

    # processes

    def start_servers(self) -> None:
        """Start the policy servers and the router."""
        for name in (*process_specs.CHAMPIONS, process_specs.CANDIDATE, process_specs.SHADOW):
            self.start_server(name, 'v1' if name in process_specs.CHAMPIONS else 'v2')
        self._start(process_specs.router_spec(self.folder / 'state', self.traces))

    def start_robots(self) -> None:
        """Start the simulated arms with their controllers."""
        for number, name in enumerate(self.board.robots):
            for part in process_specs.robot_specs(name, self._seed + number, self.traces):
                self._start(part)

    def start_server(self, name: str, version: str) -> None:
        self._start(process_specs.server_spec(name, version, self._policies, self.traces))
        self._killed.discard(name)

    def kill(self, name: str) -> float:
        """End a process with SIGKILL; return when, in seconds since 1970."""
        process = self.fleet.processes[name]
        self._killed.add(name)
        now_s = steady_time.now_s()
        process.kill()
        process.wait()
        self.add_event(f'{name} is killed (SIGKILL)', mark=f'{name} killed')
        return now_s

    def load(self, name: str, version: str) -> None:
        """Load another version in a running server by its lifecycle."""
        node = process_specs.server_node_name(name)
        for transition in ('deactivate', 'cleanup'):
            self.node.change_state(node, transition)
        self.node.set_parameters(node, **process_specs.policy_parameters(version, self._policies))
        for transition in ('configure', 'activate'):
            self.node.change_state(node, transition)
        self.add_event(f'{name} serves {version}', mark=f'{name}: {version}')

    def _start(self, part: process_specs.ProcessSpec) -> None:
        self.fleet.start(part.name, part.executable, namespace=part.namespace, **part.parameters)

    # waiting

    def wait(self, until: Callable[[], object], limit_s: float, what: str) -> float:
        """Wait until a condition holds; return the time it took [s]."""
        begin_s = time.monotonic()
        while not until():
            self._check_processes()
            if time.monotonic() - begin_s > limit_s:
                raise UserError(f'{what}: not within {limit_s:g} s; {self._status_text()}')
            self.board.changed.wait(POLL_S)
            self.board.changed.clear()
            self.screen.refresh()
        return time.monotonic() - begin_s

    def wait_for_s(self, seconds: float) -> None:
        """Wait for a duration [s] while the screen updates."""
        end_s = time.monotonic() + seconds
        self.wait(lambda: time.monotonic() >= end_s, seconds + 60.0, 'time')

    def add_event(self, text: str, mark: str = '') -> None:
        """Add an event to the list and, with a mark, to the plots."""
        self.board.add_event(steady_time.now_s(), text, mark)
        self.screen.refresh()

    def _check_processes(self) -> None:
        for name, code in self.fleet.ended().items():
            if name not in self._killed:
                raise UserError(
                    f'{name} ended with status {code}, last log line: '
                    f'{self.fleet.last_line(name)}; see {self.folder}/{name}.log'
                )

    def _status_text(self) -> str:
        """Return the state of robots and router, for the error of a phase."""
        robots = [f'{n}: {r.state} {r.reason}'.strip() for n, r in self.board.robots.items()]
        return (
            f'{"; ".join(robots)}; router: {self.board.health or "no status received"}; see '
            + (f'{self.folder}/*.log')
        )
