# SPDX-License-Identifier: Apache-2.0
"""Runs `ros2 launch` as an operator does, and a node that sees what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import os
from pathlib import Path
import shutil
import signal
import subprocess
import time

import pytest

from lerobot_serve.tools.processes import end_with_parent

START_S = 90.0
END_S = 30.0


class Launched:
    """One `ros2 launch`, in a session of its own so that what it leaves behind can be found."""

    def __init__(self, folder: Path, words: tuple[str, ...]) -> None:
        self._log = folder / f'{words[0]}.log'
        environment = {**os.environ, 'ROS_LOG_DIR': str(folder), 'ROS_HOME': str(folder / 'ros')}
        with self._log.open('w') as log:
            self.process = subprocess.Popen(
                end_with_parent(['ros2', 'launch', 'lerobot_serve', *words]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self._log.read_text()

    def interrupt(self) -> int:
        """Press Ctrl-C and return the exit status."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(END_S)

    def nodes(self) -> dict[str, int]:
        """Return the process ids of the nodes that run, by namespace/executable."""
        found = {}
        for pid in self.alive():
            try:
                words = Path(f'/proc/{pid}/cmdline').read_text().split('\0')
            except OSError:
                continue
            namespace = [
                word.removeprefix('__ns:=') for word in words if word.startswith('__ns:=')
            ]
            name = [word.removeprefix('__node:=') for word in words if word.startswith('__node:=')]
            if namespace and name:
                found[f'{namespace[0].rstrip("/")}/{name[0]}'] = pid
        return found

    def alive(self) -> list[int]:
        """Return every process of the session, also those whose parent is gone."""
        return [pid for pid in processes() if session(pid) == self.process.pid]

    def end(self) -> None:
        """End what a failed test left."""
        for pid in self.alive():
            os.kill(pid, signal.SIGKILL)
        self.process.wait()


def processes() -> list[int]:
    return [int(folder.name) for folder in Path('/proc').glob('[0-9]*')]


def session(pid: int) -> int | None:
    """Return the session of a process, None when it is gone or only its exit status is left."""
    try:
        state, _, _, number = Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[:4]
    except OSError:
        return None
    return None if state == 'Z' else int(number)


@pytest.fixture
def launch(tmp_path) -> Iterator[Callable[..., Launched]]:
    """Start a launch file of the package with arguments."""
    if not shutil.which('ros2'):
        pytest.skip('the command ros2 is part of a ROS 2 installation; there are no wheels of it')
    started: list[Launched] = []

    def start(*words: str) -> Launched:
        started.append(Launched(tmp_path, words))
        return started[-1]

    yield start
    for launched in started:
        launched.end()


@pytest.fixture
def wait_until() -> Callable[..., object]:
    """Return what a condition gives as soon as it holds; fail after a bounded time."""

    def wait(holds: Callable[[], object], what: str, launched: Launched) -> object:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if value := holds():
                return value
            time.sleep(0.02)
        pytest.fail(f'{what}: not within {START_S:g} s\n{launched.output}')

    return wait


@pytest.fixture
def observer():
    """A node of our own that spins in the background."""
    from rclpy.node import Node

    from lerobot_serve.ros.process.node_runtime import NodeRuntime

    runtime = NodeRuntime([])
    node = Node('observer', context=runtime.context)
    runtime.add(node)
    runtime.spin_in_background()
    yield node
    runtime.close()
