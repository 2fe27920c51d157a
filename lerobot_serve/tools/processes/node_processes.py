# SPDX-License-Identifier: Apache-2.0
"""
Starts the package's executables as child processes, and ends all of them.

If this process is killed, the kernel kills the children.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
from pathlib import Path
import signal
import time
from typing import IO

from ament_index_python.packages import get_package_prefix, PackageNotFoundError

from lerobot_serve.child_process import DEVNULL, Process, start, STDOUT, TimeoutExpired
from lerobot_serve.entry_points import defer_signals, EXIT_TIMEOUT_S
from lerobot_serve.errors import UserError
from lerobot_serve.tools.processes.parent_death import end_with_parent

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
        arguments = ['--ros-args']
        if namespace:
            arguments += ['-r', f'__ns:={namespace}']
        if params_file:
            arguments += ['--params-file', str(params_file)]
        for key, value in parameters.items():
            arguments += ['-p', f'{key}:={value}']
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


def executable_path(name: str) -> Path:
    """Return the installed executable. Raises UserError."""
    try:
        path = Path(get_package_prefix('lerobot_serve')) / 'lib' / 'lerobot_serve' / name
    except PackageNotFoundError:
        raise UserError('lerobot_serve is not installed; source install/setup.bash') from None
    if not path.exists():
        raise UserError(f'{path} is missing; rebuild the workspace')
    return path
