# SPDX-License-Identifier: Apache-2.0
"""A node whose middleware has locked itself up starts again, with its service manager."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
import os
from pathlib import Path
import signal
import socket
import subprocess
import sys
import time

import pytest
import rclpy
from support import middleware
from support.waiting import wait_until

from lerobot_serve.ros.process.event_threads import NAME, waits_for_lock

LOCKED = """
import os, sys
from rclpy.node import Node
from lerobot_serve.ros.process import event_threads, node_runtime
from support.middleware.locked_timer import LockedTimer
node_runtime.PORT_CHECK_S = 0.05
starts = int(os.environ.get(event_threads.STARTS_VARIABLE, '0'))

def create(runtime):
    print(f'start {starts}', flush=True)
    runtime.on_started(lambda: print('runs', flush=True))
    runtime.on_started(lambda: starts < int(sys.argv[1]) and LockedTimer())
    return Node('locked', context=runtime.context)

sys.exit(node_runtime.run(create, []))
"""
END_S = 30.0
SUPPORT = str(Path(middleware.__file__).parents[2])


@contextmanager
def running(locked_starts: int, **more: str) -> Iterator[subprocess.Popen[str]]:
    """Run a node whose middleware is locked up in so many of its starts."""
    paths = os.pathsep.join([SUPPORT, os.environ.get('PYTHONPATH', '')])
    node = subprocess.Popen(
        [sys.executable, '-c', LOCKED, str(locked_starts)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, 'PYTHONPATH': paths, **more},
    )
    try:
        yield node
    finally:
        node.kill()
        node.communicate()


def interrupted(node: subprocess.Popen[str]) -> tuple[int, str]:
    """Return status and errors of a node that is asked to end."""
    node.send_signal(signal.SIGINT)
    _, errors = node.communicate(timeout=END_S)
    return node.returncode, errors


def test_it_starts_again_and_its_manager_hears_of_it(tmp_path):
    address = str(tmp_path / 'manager')
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(END_S)
        with running(1, NOTIFY_SOCKET=address, WATCHDOG_USEC='3000000') as node:
            heard = [manager.recv(100).decode()]
            while heard.count('READY=1') < 2 or heard[-1] != 'WATCHDOG=1':
                heard.append(manager.recv(100).decode())
            lines = [node.stdout.readline() for _ in range(4)]
            status, errors = interrupted(node)
    assert lines == ['start 0\n', 'runs\n', 'start 1\n', 'runs\n']
    assert status == 0, errors
    assert errors.count('this process hears nothing, and starts again') == 1
    assert 'Fast-DDS#6502' in errors


@pytest.mark.slow
def test_it_ends_when_that_does_not_help():
    with running(100) as node:
        printed, errors = node.communicate(timeout=2 * END_S)
    assert node.returncode == 1, errors
    assert printed.count('start') == 4
    assert 'it has started again 3 times in a row' in errors


@pytest.mark.skipif(
    'fastrtps' not in rclpy.get_rmw_implementation_identifier(),
    reason='another middleware has no such thread',
)
def test_the_threads_of_a_real_node_are_looked_at_and_found_sound():
    with running(0) as node:
        assert [node.stdout.readline() for _ in range(2)] == ['start 0\n', 'runs\n']
        tasks = Path(f'/proc/{node.pid}/task')

        def named() -> list[Path]:
            found = tasks.iterdir()
            return [task for task in found if (task / 'comm').read_text().startswith(NAME)]

        wait_until(named, 'the middleware has a thread of that name')
        # samples of a second, in which it runs several times
        for _ in range(50):
            assert not waits_for_lock((named()[0] / 'syscall').read_text())
            time.sleep(0.02)
        status, errors = interrupted(node)
    assert (status, 'hears nothing' in errors) == (0, False), errors
