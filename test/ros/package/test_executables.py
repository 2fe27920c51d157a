# SPDX-License-Identifier: Apache-2.0
"""The four executables: they start, they stop at a signal with status 0, and nothing stays."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
import re
import signal
import subprocess
import sys

import pytest
from support.paths import REPOSITORY
from support.processes.forked import is_participant

from lerobot_serve.shared_memory.segments import LOCK_FILE_SUFFIX, NAME

START = {
    'policy_server': {'policy_kind': 'null'},
    'policy_router': {},
    'edge_controller': {'client_id': 'robot'},
    'gateway': {'http.port': 0},
    'learner': {'parent': str(REPOSITORY / 'config/policies/reach')},
    'sim_robot': {},
}
SIGNALS = (signal.SIGINT, signal.SIGTERM)
pytestmark = pytest.mark.long


@pytest.fixture
def processes(installed_processes):
    """The executables as they are installed."""
    return installed_processes


def nodes(node) -> set[str]:
    return {name for name, _ in node.get_node_names_and_namespaces()}


@pytest.mark.slow
@pytest.mark.parametrize('number', SIGNALS, ids=lambda number: number.name)
@pytest.mark.parametrize('name', START)
def test_a_signal_ends_it_with_status_0(name, number, processes, node, wait_until, log_of):
    process = processes.start(name, name, **START[name])
    wait_until(lambda: name in nodes(node) or process.poll() is not None, f'{name} comes up')
    segments = shared_memory_of(process.pid)
    assert segments
    assert is_participant(process.pid)
    process.send_signal(number)
    assert process.wait(10) == 0, log_of(name)
    assert 'Traceback' not in log_of(name)
    assert not [file for file in segments if file.exists()]


def shared_memory_of(pid: int) -> list[Path]:
    """Return the segments of a running process, by the lock files that it holds open."""
    opened = []
    for link in Path(f'/proc/{pid}/fd').glob('*'):
        # it may be closed meanwhile
        with contextlib.suppress(OSError):
            opened.append(os.readlink(link))
    return [
        Path(file.removesuffix(LOCK_FILE_SUFFIX))
        for file in opened
        if re.fullmatch(f'.*/{NAME}{LOCK_FILE_SUFFIX}', file)
    ]


def blocks_signals(pid: int) -> bool:
    for line in Path(f'/proc/{pid}/status').read_text().splitlines():
        if line.startswith('SigBlk:'):
            return bool(int(line.split()[1], 16) & 1 << signal.SIGINT - 1)
    return False


@pytest.mark.slow
@pytest.mark.parametrize('name', START)
def test_a_signal_while_it_loads_ends_it_without_a_traceback(name, processes, wait_until, log_of):
    process = processes.start(name, name, **START[name])
    wait_until(lambda: blocks_signals(process.pid), f'{name} holds signals back')
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 0, log_of(name)
    assert 'Traceback' not in log_of(name)


def test_a_failing_thread_ends_the_process_with_status_1(runtime):
    def fails():
        raise ZeroDivisionError('on purpose')

    runtime.thread('fails', fails)
    assert runtime.stop.wait(10)
    assert isinstance(runtime.failure, ZeroDivisionError)


HANGING = """
import ctypes, sys
from rclpy.node import Node
from lerobot_serve.ros.process import node_runtime
from lerobot_serve.errors import UserError

class Hanging(Node):
    def destroy_node(self):
        ctypes.PyDLL(None).sleep(100)

def create(opened):
    opened.on_started(refuse)
    return Hanging('hanging', context=opened.context)

def refuse():
    raise UserError('no such thing')

node_runtime.JOIN_TIMEOUT_S, node_runtime.EXIT_TIMEOUT_S = 0.5, 2.0
sys.exit(node_runtime.run(create, []))
"""


def test_a_node_that_hangs_while_it_is_destroyed_ends_with_status_1_and_says_where():
    ended = subprocess.run(
        [sys.executable, '-c', HANGING], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith('error: no such thing\n')
    assert 'in destroy_node' in ended.stderr


HANGS_AT_EXIT = """
import ctypes, sys, types
from lerobot_serve.entry_points import run_main

libc = ctypes.CDLL(None)
getattr(libc, '__cxa_atexit')(ctypes.cast(libc.pause, ctypes.c_void_p), None, None)
sys.modules['hanging'] = types.SimpleNamespace(main=lambda: int(sys.argv[1]))
print('closed')
run_main('hanging')
"""


@pytest.mark.parametrize('status', [0, 1])
def test_a_destructor_of_a_library_that_hangs_does_not_keep_a_process(status):
    ended = subprocess.run(
        [sys.executable, '-c', HANGS_AT_EXIT, str(status)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (status, 'closed\n', '')
