# SPDX-License-Identifier: Apache-2.0
"""
Starts executables of the package as forks of a process that has imported them, which takes a
third of the CPU of a start: the rest is imports.

Such a process is a real one, with its own context of ROS, its log and its exit status, and a child
of the test's process, with which the kernel ends it. test_executables, the demo and the launch
files start the installed executables themselves.

One server for each process of pytest; its main thread asks.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
import select
import signal
import socket
import subprocess
import sys
from typing import IO

from benchmarks.harness.processes import start_executable
from support.processes.forked import adopt_orphans, MESSAGE_BYTES

START_LIMIT_S = 120.0
RUN_LIMIT_S = 60.0
# what an interpreter and its libraries read once, when they start
READ_AT_START = ('LD_', 'PYTHON', 'OMP_', 'OPENBLAS_', 'MALLOC_', 'GLIBC_')
FORKED = Path(__file__).with_name('forked.py')


class ForkServer:
    """Started with the first test that has nodes, ended with the last."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(START_LIMIT_S)
        self._environment = dict(os.environ)
        self._started: list[ForkedProcess] = []
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(FORKED), str(theirs.fileno())], pass_fds=[theirs.fileno()]
            )

    def start(
        self, executable: str, arguments: list[str], environment: dict[str, str], log: IO[str]
    ) -> ForkedProcess | subprocess.Popen[bytes]:
        """Start one executable; in the way of NodeProcesses where a fork would be another one."""
        # a test may kill one and forget it, for a successor of the same name
        self._started = [process for process in self._started if process.poll() is None]
        if not self._fits(environment):
            return start_executable(executable, arguments, environment, log)
        order = json.dumps([executable, arguments, environment, os.getcwd(), os.getpid()])
        with adopt_orphans():
            socket.send_fds(self._socket, [order.encode()], [log.fileno()])
            pid = self._socket.recv(MESSAGE_BYTES)
        assert pid, 'the fork server ended; what it said stands above'
        self._started.append(ForkedProcess(int(pid), [executable, *arguments]))
        return self._started[-1]

    def run(self, executable: str, arguments: list[str], folder: Path) -> tuple[int, str]:
        """Run an executable until it ends; return its status and what it prints, errors too."""
        output = folder / f'{executable}.txt'
        with output.open('w') as file:
            process = self.start(executable, arguments, dict(os.environ), file)
        try:
            status = process.wait(RUN_LIMIT_S)
        finally:
            process.kill()
            process.wait()
        return status, output.read_text()

    def end(self) -> None:
        self._socket.close()
        self._process.wait(START_LIMIT_S)

    def _fits(self, environment: dict[str, str]) -> bool:
        def read_at_start(variables: dict[str, str]) -> dict[str, str]:
            return {
                name: value
                for name, value in variables.items()
                if name.startswith(READ_AT_START) and name != 'PYTHONPATH'
            }

        return read_at_start(environment) == read_at_start(self._environment)


class ForkedProcess:
    """A child of this process, with what tests use of subprocess.Popen."""

    def __init__(self, pid: int, args: list[str]) -> None:
        self.pid, self.args = pid, args
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit status, minus the signal's number after a signal; None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status once it ended. Raises TimeoutExpired."""
        if self.poll() is None:
            ended = os.pidfd_open(self.pid)
            try:
                if not select.select([ended], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired(self.args, timeout)
            finally:
                os.close(ended)
        status = self.poll()
        assert status is not None
        return status

    def send_signal(self, number: int) -> None:
        # a pid that was waited for may be somebody else's
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)
