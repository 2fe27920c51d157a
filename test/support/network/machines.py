# SPDX-License-Identifier: Apache-2.0
"""Machines of a network that lives as long as a test needs it, and commands on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import contextlib
from dataclasses import asdict
import json
import os
from pathlib import Path
import select
import signal
import subprocess
import sys
from typing import IO

from benchmarks.harness.processes import module_command, SHUTDOWN_LIMIT_S
from benchmarks.network_emulation.pipe import Conditions
from lerobot_serve.entry_points import defer_signals
from lerobot_serve.tools.processes import end_with_parent
from support.network.switch import CABLE

ANSWER_S = 60.0
CUT = Conditions(rate_mbit_s=1000, delay_ms=0, loss_percent=100, queue_ms=100)


class NetworkUnavailable(Exception):
    """No network can be made here, and why."""


class Machines:
    """Main thread of the test. Each machine has a ROS domain of its own."""

    def __init__(self, addresses: Mapping[str, str], folder: Path) -> None:
        """Raises NetworkUnavailable."""
        self._folder = folder
        self._domains = {name: str(11 + number) for number, name in enumerate(addresses)}
        self._logs: list[IO[str]] = []
        self.processes: dict[str, subprocess.Popen] = {}
        command = [sys.executable, '-m', 'support.network.switch', json.dumps(dict(addresses))]
        with defer_signals():
            self._switch = subprocess.Popen(
                end_with_parent(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        self._files = self._answer()
        if 'refused' in self._files:
            self.end()
            raise NetworkUnavailable(
                f'this system makes no network namespaces: {self._files["refused"]}'
            )

    def set_link(self, machine: str, conditions: Conditions = CABLE) -> list[dict[str, int]]:
        """Change the link of a machine; return what became of its packets so far."""
        print(json.dumps({machine: asdict(conditions)}), file=self._switch.stdin, flush=True)
        return self._answer()[machine]

    def on(self, machine: str, command: list[str]) -> list[str]:
        """Return the command that runs another one on a machine."""
        files = self._files[machine]
        inside = self._switch.pid, files['network'], files['mounts']
        return module_command('network_emulation.run_inside', *inside, *command)

    def environment(self, machine: str) -> dict[str, str]:
        home = self._folder / machine
        home.mkdir(exist_ok=True)
        return {**os.environ, 'ROS_DOMAIN_ID': self._domains[machine], 'ROS_HOME': str(home)}

    def start(self, name: str, machine: str, command: list[str]) -> subprocess.Popen:
        """Start a command with its output in NAME.log."""
        log = open(self._folder / f'{name}.log', 'w')  # noqa: SIM115
        self._logs.append(log)
        self.processes[name] = self._popen(machine, command, stdout=log, stderr=subprocess.STDOUT)
        return self.processes[name]

    def open(self, name: str, machine: str, command: list[str]) -> subprocess.Popen:
        """Start a command that answers on its standard output; standard input ends it."""
        pipe = subprocess.PIPE
        self.processes[name] = self._popen(machine, command, stdin=pipe, stdout=pipe, text=True)
        return self.processes[name]

    def run(self, machine: str, command: list[str]) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            end_with_parent(self.on(machine, command)),
            env=self.environment(machine),
            capture_output=True,
            text=True,
            timeout=SHUTDOWN_LIMIT_S,
        )

    def _popen(self, machine: str, command: list[str], **options: object) -> subprocess.Popen:
        with defer_signals():
            return subprocess.Popen(
                end_with_parent(self.on(machine, command)),
                env=self.environment(machine),
                **{'stdin': subprocess.DEVNULL, **options},
            )

    def _answer(self) -> dict:
        line = line_of(self._switch)
        assert line, 'the switch ended; what it said stands above'
        return json.loads(line)

    def end(self) -> None:
        """End all processes, then the network."""
        for process in self.processes.values():
            if process.stdin is None and process.poll() is None:
                process.send_signal(signal.SIGINT)
        for process in (*self.processes.values(), self._switch):
            with contextlib.suppress(BrokenPipeError):
                if process.stdin:
                    process.stdin.close()
            try:
                process.wait(SHUTDOWN_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout:
                process.stdout.close()
        for log in self._logs:
            log.close()


def line_of(process: subprocess.Popen, limit_s: float = ANSWER_S) -> str:
    """Return the next line of a process; empty after the limit and when it has ended."""
    readable, _, _ = select.select([process.stdout], [], [], limit_s)
    return process.stdout.readline() if readable else ''


@contextlib.contextmanager
def running_machines(addresses: Mapping[str, str], folder: Path) -> Iterator[Machines]:
    """Yield machines with these addresses. Raises NetworkUnavailable."""
    machines = Machines(addresses, folder)
    try:
        yield machines
    finally:
        machines.end()
