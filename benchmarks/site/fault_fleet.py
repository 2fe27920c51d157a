# SPDX-License-Identifier: Apache-2.0
"""
A site with two routers, four servers and a PostgreSQL in one network, its robots in another one,
and the link between the two. Main thread.

Each process may be killed and started again (`fault_layout` has their names and parameters). What
the robots do is read from their traces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
import contextlib
from dataclasses import dataclass, field
import json
import os
from pathlib import Path
import signal
import subprocess
import time

from benchmarks.harness.processes import end, module_command, node_command, spawn
from benchmarks.network_emulation.link import Link, running_link
from benchmarks.network_emulation.pipe import Conditions
from benchmarks.network_emulation.relay import ROBOT, SERVER
from benchmarks.site.fault_layout import (
    executable_and_parameters,
    LINKS,
    node_name,
    ROBOTS,
    ROUTERS,
    SERVERS,
    STORE,
    WITNESSES,
)
from benchmarks.site.postgres import postgres_server, PostgresServer
from lerobot_serve.errors import UserError
from lerobot_serve.tools.processes import executable_path

DOMAIN = '7'
WHOLE = Conditions(rate_mbit_s=1000, delay_ms=1, loss_percent=0, queue_ms=100)
CUT = Conditions(rate_mbit_s=1000, delay_ms=1, loss_percent=100, queue_ms=100)
START_LIMIT_S, PLAY_LIMIT_S, OPERATOR_LIMIT_S = 120.0, 60.0, 60.0
POLL_S = 0.05


@dataclass(slots=True)
class FollowedTrace:
    """The file of an edge's trace, read as it grows: how many actions of a policy it played."""

    folder: Path
    played: int = 0
    _position: int = 0
    _rest: bytes = b''

    def read(self) -> None:
        for file in sorted(self.folder.glob('*.jsonl'))[:1]:
            with file.open('rb') as opened:
                opened.seek(self._position)
                found = opened.read()
            self._position += len(found)
            *lines, self._rest = (self._rest + found).split(b'\n')
            self.played += sum(
                b'"kind":"executed"' in line.replace(b' ', b'')
                and b'"rung":"policy"' in line.replace(b' ', b'')
                for line in lines
            )


@dataclass(slots=True)
class FaultFleet:
    """The processes by name, and what their traces show. Raises UserError where one ended."""

    folder: Path
    link: Link
    store: PostgresServer
    database: str
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    played: dict[str, FollowedTrace] = field(default_factory=dict)

    def start_all(self) -> None:
        """Start everything, and wait until all robots play."""
        self._start(LINKS, self._has_links)
        self._start(ROUTERS, self._has_routers)
        for name in (*SERVERS, *ROBOTS, *WITNESSES, *(f'{robot}_arm' for robot in ROBOTS)):
            self.start(name)
        self.played = {name: FollowedTrace(self.folder / name) for name in ROBOTS}
        if not self.wait_for_play(30, START_LIMIT_S):
            raise UserError('not all robots play')

    def _start(self, names: Iterable[str], has_started: Callable[[], bool]) -> None:
        for name in names:
            self.start(name)
        if not self._wait(has_started, START_LIMIT_S):
            raise UserError(f'not all of {", ".join(names)} start')

    def _has_links(self) -> bool:
        return all((self.folder / f'{name}.log').stat().st_size for name in LINKS)

    def _has_routers(self) -> bool:
        return all(any((self.folder / name).glob('*.jsonl')) for name in ROUTERS)

    def start(self, name: str) -> None:
        """Start a process, also one that was killed."""
        is_robots = name.startswith('robot') or name == 'witness_robots'
        side = self.link.robot if is_robots else self.link.server
        home = self.folder / 'ros' / name
        home.mkdir(parents=True, exist_ok=True)
        more = {'ROS_HOME': str(home), 'OMP_NUM_THREADS': '1'}
        environment = environment_of(SERVER if is_robots else ROBOT) | more
        with (self.folder / f'{name}.log').open('ab') as log:
            self.processes[name] = spawn([*side, *self._command(name)], log, env=environment)

    def _command(self, name: str) -> list[str]:
        if name in WITNESSES:
            link, file = WITNESSES[name], self.folder / f'{name}.jsonl'
            tapped = [f'tcp/127.0.0.1:{port}' for port in ROUTERS.values()]
            return module_command('site.witness', link, file, *tapped)
        if name in LINKS:
            _, end_name, port = LINKS[name]
            socket = f'{self.store.folder}/.s.PGSQL.{self.store.port}'
            target = socket if end_name == STORE else SERVERS[end_name][1]
            return module_command('site.forwarder', port, target)
        kind, parameters = executable_and_parameters(name, self.folder, self.database)
        node = '' if kind == 'sim_robot' else node_name(name)
        namespace = f'/{name.removesuffix("_arm")}' if name.startswith('robot_') else ''
        shown = {key: json.dumps(value) for key, value in parameters.items()}
        return node_command(kind, shown, node, namespace)

    def signal(self, name: str, number: signal.Signals) -> None:
        self.processes[name].send_signal(number)

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].wait()

    def operate(self, words: Sequence[str], router: str) -> int | None:
        """Give a router a command, as an operator does; return its exit status, if it ended."""
        more = ['--router', f'/{router}', '--yes', '--reason', 'fault run']
        command = [*self.link.server, str(executable_path('lerobot-serve')), *words, *more]
        with (self.folder / 'operator.log').open('ab') as log:
            log.write(f'$ {" ".join([*words, *more])}\n'.encode())
            log.flush()
            process = spawn(command, log, env=environment_of(ROBOT))
        try:
            return process.wait(OPERATOR_LIMIT_S)
        except subprocess.TimeoutExpired:
            return None
        finally:
            end(process)

    def wait_for_play(self, actions: int, limit_s: float = PLAY_LIMIT_S) -> bool:
        """Wait until all robots have played so many more actions; return whether they have."""
        self._read()
        until = {name: trace.played + actions for name, trace in self.played.items()}
        return self._wait(
            lambda: all(self.played[name].played >= until[name] for name in until), limit_s
        )

    def _wait(self, holds: Callable[[], bool], limit_s: float) -> bool:
        deadline_s = time.monotonic() + limit_s
        while not holds():
            if time.monotonic() > deadline_s:
                return False
            time.sleep(POLL_S)
            self._read()
        return True

    def _read(self) -> None:
        for trace in self.played.values():
            trace.read()
        for name, process in self.processes.items():
            if process.poll() not in (None, -signal.SIGKILL):
                raise UserError(f'{name} ended with status {process.returncode}; see {name}.log')

    def end(self) -> None:
        """End all processes: robots first, so that what they asked has an end."""
        arms = [f'{name}_arm' for name in ROBOTS]
        for names in (ROBOTS, arms, WITNESSES, ROUTERS, SERVERS, LINKS):
            for name in names:
                if process := self.processes.get(name):
                    process.send_signal(signal.SIGINT)
            for name in names:
                if process := self.processes.get(name):
                    end(process)


def environment_of(peer: str) -> dict[str, str]:
    """Return the environment of a process whose network sees that of a peer."""
    return {
        **os.environ,
        'ROS_DOMAIN_ID': DOMAIN,
        'ROS_AUTOMATIC_DISCOVERY_RANGE': 'SUBNET',
        'ROS_STATIC_PEERS': peer,
    }


@contextlib.contextmanager
def fault_fleet(folder: Path) -> Iterator[FaultFleet]:
    """
    Run a fleet with a folder of its own, whose robots play. Raises UserError, and LinkUnavailable
    where no networks can be made.
    """
    folder.mkdir(parents=True)
    with postgres_server() as store, running_link(WHOLE, seed=1) as link:
        database = store.new_database().rpartition('/')[2]
        fleet = FaultFleet(folder, link, store, database)
        try:
            fleet.start_all()
            yield fleet
        finally:
            fleet.end()
