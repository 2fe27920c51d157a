# SPDX-License-Identifier: Apache-2.0
"""Operations of the acts: run a verb, start a fleet file, kill, wait. The main thread."""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import os
from pathlib import Path
import signal
import time

from lerobot_serve.contract.records import ReplicaState, ShadowSummary, SlotState
from lerobot_serve.demo import steady_time
from lerobot_serve.demo.child_processes import (
    ChildProcesses,
    DashboardProcess,
    FleetLog,
    process_ids,
    run_process,
)
from lerobot_serve.demo.fleet_names import ROUTER
from lerobot_serve.demo.node import DemoMonitor
from lerobot_serve.demo.results.scoreboard import router_events, Scoreboard
from lerobot_serve.demo.results.screen import Screen
from lerobot_serve.demo.tour.act_order import DemoOptions
from lerobot_serve.demo.tour.link import Command, KillCommand, TypedCommand, VerbCommand
from lerobot_serve.errors import UserError
from lerobot_serve.router.canary.states import CanaryPhase
from lerobot_serve.tools.operate.fleet_client import FleetClient
from lerobot_serve.tools.operate.fleet_state import RouterView
from lerobot_serve.tools.operate.outcome import ResultUnknown
from lerobot_serve.tools.operate.rollout.rollout_watch import RolloutWatch

POLL_S = 0.2
# a candidate is rolled back within the first, and gets no episode later than the second after it
BACK_S, AFTER_ROLLBACK_S = 300.0, 1.0


class ActContext:
    """Used by the main thread. An operation that fails raises UserError."""

    def __init__(
        self,
        children: ChildProcesses,
        client: FleetClient,
        monitor: DemoMonitor,
        screen: Screen,
        options: DemoOptions,
    ) -> None:
        self.children, self.client, self.node, self.screen = children, client, monitor, screen
        self.board: Scoreboard = monitor.board
        self.folder, self.plan = options.folder, options.plan
        self.link, self._domain = options.link, options.domain
        self.act = ''
        self._logs: dict[str, FleetLog] = {}
        self._typed: dict[str, TypedCommand] = {}
        self._killed: set[str] = set()
        self._recorded: set[str] = set()
        self._dashboard: DashboardProcess | None = None
        self._seen = RouterView(ROUTER)

    # the router

    def router(self) -> RouterView:
        """Return the newest state of the router; an empty one before the first."""
        return self.client.last_router(ROUTER) or RouterView(ROUTER)

    def slot(self, name: str) -> SlotState:
        return self.router().slot(name) or SlotState(name, state=SlotState.State.UNAVAILABLE)

    def replica(self, slot: str, server: str) -> ReplicaState:
        """Return the state of a server at the router."""
        found = (each for each in self.slot(slot).replicas if each.server == server)
        return next(found, ReplicaState(server))

    def shadow(self) -> ShadowSummary:
        """Return the newest comparison of the shadow; an empty one before the first."""
        return self.client.shadow(ROUTER, 0.0) or ShadowSummary()

    # commands

    def up(self, file: str, remark: str) -> None:
        """Start `lerobot-serve up FILE`, which runs until the end of the demo."""
        command = VerbCommand(('up', str(self.folder / file)), self._domain)
        typed = self._print_command(command, remark)
        name = Path(file).stem
        self.children.start(name, command.command)
        self._logs[name], self._typed[name] = FleetLog(), typed

    def adopt(
        self, file: str, typed: TypedCommand, dashboard: DashboardProcess | None = None
    ) -> None:
        """Watch a fleet, and the dashboard, that were started before ROS was imported."""
        if dashboard:
            self._dashboard = dashboard
            self.screen.add_command(dashboard.typed)
        self.screen.add_command(typed)
        name = Path(file).stem
        self._logs[name], self._typed[name] = FleetLog(), typed

    def run_verb(self, *words: str, remark: str = '') -> None:
        """Run a verb while the screen updates. Raises UserError when it fails."""
        command = VerbCommand(words, self._domain)
        typed = self._print_command(command, remark)
        run_process(command.command, self.children.environment, typed, self.wait)

    def _print_command(self, command: Command, remark: str = '') -> TypedCommand:
        typed = TypedCommand(steady_time.now_s(), self.act, command.text, remark)
        self.screen.add_command(typed)
        return typed

    def process_id(self, node: str) -> int:
        """Return the process of a node, `a1/policy_server`. Raises UserError."""
        for name in self._logs:
            found = process_ids(self.children.children[name].process.pid)
            if node in found:
                return found[node]
        raise UserError(f'no process of {node} runs; see {self.folder}/*.log')

    def kill(self, name: str, node: str) -> float:
        """End a process with SIGKILL; return when, in seconds since 1970."""
        pid = self.process_id(node)
        self._killed.add(name)
        command = KillCommand(pid)
        typed = self._print_command(command, f'{node} runs in process {pid}')
        now_s = steady_time.now_s()
        os.kill(pid, signal.SIGKILL)
        typed.status = 0
        self.add_event(f'{name} is killed (SIGKILL)', mark=f'{name} killed')
        return now_s

    # simulation

    def set_simulation(self, **values: float | bool) -> None:
        """Change parameters of all simulated robots, as their world changes. Raises UserError."""
        for name in self.board.robots:
            self.set_parameters(f'/{name}/sim_robot', **values)

    def set_parameters(self, node: str, **values: float | bool) -> None:
        """Set parameters of a node. Raises UserError."""
        if rejected := self.client.set_parameters(node, values):
            raise UserError(f'{node} rejects {values}: {rejected}')

    # recording

    def record(self, *versions: str) -> None:
        """Record the arms until one has a whole clip under each of these versions."""
        self._recorded = set(versions)
        self.node.record_arms(self.board.robots if versions else ())

    # waiting

    def wait(self, until: Callable[[], object], limit_s: float, what: str) -> float:
        """Wait until a condition holds; return the time it took [s]."""
        begin_s = time.monotonic()
        while not until():
            self.check_children()
            if time.monotonic() - begin_s > limit_s:
                raise UserError(f'{what}: not within {limit_s:g} s; {self._status_text()}')
            time.sleep(POLL_S)
            self._update()
        return time.monotonic() - begin_s

    def _update(self) -> None:
        """Note what is new, and show it."""
        if self._recorded and all(map(self.board.is_recorded, self._recorded)):
            self.record()
        if self._dashboard and (line := self._dashboard.poll()):
            self.screen.add_heading(line)
        now = self.client.last_router(ROUTER)
        if now:
            # the first state is not a change
            for text, mark in router_events(self._seen if self._seen.state.slots else now, now):
                self.add_event(text, mark)
            self._seen = now
            self.screen.shadow = self.client.shadow(ROUTER, 0.0)
            self._find_watch(now)
        self.screen.refresh()

    def _find_watch(self, router: RouterView) -> None:
        """Give the screen the view of `rollout watch` as soon as the router gives its settings."""
        if self.screen.watch is None and router.state.slots:
            with contextlib.suppress(UserError, ResultUnknown):
                self.screen.watch = RolloutWatch(self.client, router)

    def wait_for_rollback(self, version: str) -> tuple[float, float, str]:
        """
        Wait for a rollback, and for the episodes that the router places next; return when it was,
        from when on the version gets none, and why.
        """
        self.wait(
            lambda: self.router().canary.state is CanaryPhase.ROLLED_BACK,
            BACK_S,
            f'{version} is rolled back',
        )
        back_s, why = steady_time.now_s(), self.router().canary.text
        later_s = back_s + AFTER_ROLLBACK_S
        self.wait(
            lambda: self.board.placed_after('', later_s) >= len(self.board.robots),
            BACK_S,
            'new episodes begin after the rollback',
        )
        return back_s, later_s, why

    def wait_for_s(self, seconds: float) -> None:
        """Wait for a duration [s] while the screen updates."""
        end_s = time.monotonic() + seconds
        self.wait(lambda: time.monotonic() >= end_s, seconds + 60.0, 'time')

    def add_event(self, text: str, mark: str = '') -> None:
        """Add an event to the list and, with a mark, to the plots."""
        self.board.add_event(steady_time.now_s(), text, mark, self.act)

    def check_children(self) -> None:
        """Read what the fleets print. Raises UserError when one, or a process of one, fails."""
        for name, log in self._logs.items():
            for line in self.children.children[name].new_lines():
                log.add(line)
            self._typed[name].lines = log.own_lines
            if failure := log.failure(self._killed):
                raise UserError(f'{failure}; see {self.folder}/{name}.log')
        for name, code in self.children.ended().items():
            if name in self._logs:
                last = self.children.children[name].lines.last_line or 'none'
                raise UserError(
                    f'`up` of {name} ended with status {code}, last log line: {last}; see '
                    f'{self.folder}/{name}.log'
                )

    def _status_text(self) -> str:
        """Return the state of robots and router, for the error of an act."""
        robots = [f'{n}: {r.state} {r.edge.reason}'.strip() for n, r in self.board.robots.items()]
        health = self.router().state.health or 'no status received'
        return f'{"; ".join(robots)}; router: {health}; see {self.folder}/*.log'
