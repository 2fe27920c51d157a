# SPDX-License-Identifier: Apache-2.0
"""Processes of benchmarks and tests; each is ended by its own id, whatever happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
import contextlib
import os
from pathlib import Path
import signal
import socket
import subprocess
import sys
import time
from typing import Any, IO

from lerobot_serve.child_process import DEVNULL, Process, start, STDOUT, TimeoutExpired
from lerobot_serve.entry_points import defer_signals, EXIT_TIMEOUT_S
from lerobot_serve.errors import UserError
from lerobot_serve.tools.processes import end_with_parent, executable_path

END_S, POLL_S = 10.0, 0.02
LOCALHOST = '127.0.0.1'


def free_ports(count: int) -> list[int]:
    """Return TCP ports of this machine that nobody has at this moment."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((LOCALHOST, 0))
        return [each.getsockname()[1] for each in sockets]


def free_endpoints(count: int) -> list[str]:
    """Return free TCP endpoints of this machine for Zenoh."""
    return [f'tcp/{LOCALHOST}:{port}' for port in free_ports(count)]


def spawn(command: list[str], log: IO[Any], **more: Any) -> subprocess.Popen:
    """Start a command with its output in `log`, which ends with the thread that calls this."""
    with defer_signals():
        return subprocess.Popen(
            end_with_parent(command),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            **more,
        )


@contextlib.contextmanager
def child(
    command: list[str],
    log: Path,
    environment: dict[str, str] | None = None,
    folder: Path | None = None,
) -> Iterator[subprocess.Popen]:
    """
    Run a command beside us with its output in `log`; SIGINT ends it, after END_S SIGKILL. It runs
    in `folder`, here unless that is given.
    """
    with open(log, 'w') as output:
        process = spawn(command, output, env=environment, cwd=folder)
        try:
            yield process
        finally:
            end(process)


def end(process: subprocess.Popen) -> None:
    """End one process, with a bound."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def wait_until(
    holds: Callable[[], object],
    otherwise: str,
    limit_s: float,
    process: subprocess.Popen | None = None,
) -> None:
    """Return once it holds. Raises UserError after the limit, and when the process has ended."""
    deadline = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > deadline or (process and process.poll() is not None):
            raise UserError(otherwise)
        time.sleep(POLL_S)


def node_command(
    executable: str, parameters: Mapping[str, object], name: str = '', namespace: str = ''
) -> list[str]:
    """Return the command of a node of this package."""
    return [str(executable_path(executable)), *ros_arguments(parameters, name, namespace)]


def ros_arguments(
    parameters: Mapping[str, object], name: str = '', namespace: str = '', file: Path | None = None
) -> list[str]:
    """Return the arguments of a node; `parameters` take precedence over a file."""
    words = ['--ros-args']
    for key, value in (('__node', name), ('__ns', namespace)):
        words += ['-r', f'{key}:={value}'] if value else []
    words += ['--params-file', str(file)] if file else []
    for key, value in parameters.items():
        shown = str(value).lower() if isinstance(value, bool) else value
        words += ['-p', f'{key}:={shown}']
    return words


def took_ms(act: Callable[[], object]) -> float:
    """Return how long it took."""
    begin_ns = time.perf_counter_ns()
    act()
    return (time.perf_counter_ns() - begin_ns) / 1e6


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process, to the microsecond; /proc counts in 10 ms. Linux."""
    # man 2 clock_getres has the number of the CPU clock of another process
    return time.clock_gettime((~pid << 3) | 2)


def ended_children_cpu_s(pid: int) -> float:
    """Return the CPU time of those children of a process that have ended, to 10 ms. Linux."""
    fields = Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()
    return sum(map(int, fields[13:15])) / os.sysconf('SC_CLK_TCK')


def page_faults(pid: int) -> int:
    """Return how often a process touched memory that the system had yet to give it."""
    try:
        fields = Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()
    except OSError:
        return 0
    return int(fields[7])


def memory_mib(pid: int, name: str = 'VmRSS') -> float:
    """Return the resident memory of a process, or VmHWM, its peak. Raises UserError."""
    for line in Path(f'/proc/{pid}/status').read_text().splitlines():
        if line.startswith(f'{name}:'):
            return int(line.split()[1]) / 1024
    raise UserError(f'process {pid} has no memory; it has ended')


def module_command(name: str, *arguments: object) -> list[str]:
    """Return the command that runs a module of this package with this Python."""
    return [sys.executable, '-m', f'benchmarks.{name}', *map(str, arguments)]


# A hanging node ends itself and logs its stacks. All nodes end at the same time on one machine;
# before that, a server sends outstanding replies and every node joins its threads.
SHUTDOWN_LIMIT_S = EXIT_TIMEOUT_S + 15.0


def start_executable(
    executable: str, arguments: list[str], environment: dict[str, str], log: IO[str]
) -> Process[bytes]:
    """Start one executable of the package; main thread. Raises UserError."""
    return start(
        end_with_parent([str(executable_path(executable)), *arguments]),
        stdout=log,
        stderr=STDOUT,
        stdin=DEVNULL,
        env=environment,
    )


class NodeProcesses:
    """Processes with their logs in one folder."""

    def __init__(
        self,
        folder: Path,
        environment: dict[str, str],
        start: Callable[..., Process[bytes]] = start_executable,
    ) -> None:
        self._folder, self.environment, self._start = folder, environment, start
        self.processes: dict[str, Process[bytes]] = {}
        self._logs: list[IO[str]] = []

    def start(
        self,
        name: str,
        executable: str,
        *,
        namespace: str = '',
        params_file: Path | None = None,
        **parameters: object,
    ) -> Process[bytes]:
        """
        Start one executable with its output in NAME.log. `parameters` take precedence over the
        file.
        """
        arguments = ros_arguments(parameters, namespace=namespace, file=params_file)
        # closed in end(), after the process that writes to it
        log = open(  # noqa: SIM115
            self._folder / f'{name}.log', 'w'
        )
        self._logs.append(log)
        with defer_signals():
            self.processes[name] = self._start(executable, arguments, self.environment, log)
        return self.processes[name]

    def ended(self) -> dict[str, int]:
        """Return the exit status of every ended process."""
        codes = {name: process.poll() for name, process in self.processes.items()}
        return {name: code for name, code in codes.items() if code is not None}

    def last_line(self, name: str) -> str:
        """Return the last non-empty line of a log."""
        lines = (self._folder / f'{name}.log').read_text(errors='replace').split('\n')
        return next((line.strip() for line in reversed(lines) if line.strip()), '(none)')

    def end(self) -> dict[str, int]:
        """
        End all processes with SIGINT, after SHUTDOWN_LIMIT_S with SIGKILL; return the exit
        statuses.
        """
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + SHUTDOWN_LIMIT_S
        for process in self.processes.values():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except TimeoutExpired:
                process.kill()
                process.wait()
        for log in self._logs:
            log.close()
        return {name: process.returncode for name, process in self.processes.items()}


@contextlib.contextmanager
def node_processes(
    folder: Path,
    environment: dict[str, str],
    start: Callable[..., Process[bytes]] = start_executable,
) -> Iterator[NodeProcesses]:
    """Yield the processes and end them on every exit."""
    started = NodeProcesses(folder, environment, start)
    try:
        yield started
    finally:
        started.end()
