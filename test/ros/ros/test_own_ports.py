# SPDX-License-Identifier: Apache-2.0
"""
A node that ends while Fast DDS replaces one of its ports ends all the same, and orderly. Without
the wait it crashes or hangs, in Fast DDS, at some of these instants.
"""

from __future__ import annotations

from itertools import takewhile
import signal
import subprocess
import sys
import time

import pytest
from support.middleware.dead_port import leave_locked, leave_marked
from support.waiting import wait_until

from lerobot_serve.shared_memory.ports import ports_of

ENDS = """
import sys
from rclpy.node import Node
from lerobot_serve.ros.process.node_runtime import NodeRuntime
runtime = NodeRuntime([])
runtime.add(Node('ends', context=runtime.context))
runtime.spin_in_background()
print('runs', flush=True)
sys.stdin.readline()
runtime.close()
print('closed', flush=True)
"""
# that of the data of topics, and that of discovery
PORTS = 2
END_S = 30.0


@pytest.fixture
def ending():
    """A process with a node, which ends when a line is written to it."""
    running = subprocess.Popen(
        [sys.executable, '-c', ENDS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield running
    finally:
        running.kill()
        running.communicate()


@pytest.mark.slow
@pytest.mark.parametrize('delay_s', [0.0, 0.2, 1.0])
@pytest.mark.parametrize('damage', [leave_locked, leave_marked])
def test_a_node_ends_while_its_ports_are_replaced(ending, damage, delay_s: float):
    assert ending.stdout.readline() == 'runs\n'
    wait_until(lambda: len(ports_of(ending.pid)) >= PORTS, 'the ports are open')
    for file, number in ports_of(ending.pid).items():
        damage(file, number)
    time.sleep(delay_s)
    printed, errors = ending.communicate('\n', END_S)
    assert (ending.returncode, printed) == (0, 'closed\n'), errors


def test_a_node_with_sound_ports_waits_for_nothing(ending):
    assert ending.stdout.readline() == 'runs\n'
    printed, errors = ending.communicate('\n', END_S)
    assert (ending.returncode, printed) == (0, 'closed\n')
    assert 'a port is closed as it is' not in errors


DEAF = """
import os, sys
from rclpy.node import Node
from lerobot_serve.ros.process import event_threads, node_runtime
from lerobot_serve.shared_memory.ports import ports_of
node_runtime.DEAF_S = float(sys.argv[2])
starts = int(os.environ.get(event_threads.STARTS_VARIABLE, '0'))
kept = []

def create(runtime):
    node = Node('deaf', context=runtime.context)
    print(f'start {starts}', flush=True)
    if starts < int(sys.argv[1]):
        for file in ports_of():
            os.unlink(file)
    kept.append(runtime)
    runtime.on_started(lambda: print('runs', flush=True))
    return node

sys.exit(node_runtime.run(create, []))
"""


@pytest.fixture
def deaf(request):
    running = subprocess.Popen(
        [sys.executable, '-c', DEAF, *map(str, request.param)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield running
    finally:
        running.kill()
        running.communicate()


def starts_until_it_runs(process: subprocess.Popen[str]) -> list[str]:
    """Return its starts: one more where a port lost its file beside other processes that end."""
    return list(takewhile(lambda line: line != 'runs\n', process.stdout))


@pytest.mark.slow
@pytest.mark.parametrize('deaf', [(2, 1.0)], indirect=True)
def test_a_process_that_would_hear_nothing_starts_again(deaf):
    starts = starts_until_it_runs(deaf)
    assert starts[:3] == ['start 0\n', 'start 1\n', 'start 2\n']
    deaf.send_signal(signal.SIGINT)
    _, errors = deaf.communicate(timeout=END_S)
    assert deaf.returncode == 0, errors
    text = 'has no file: this process would hear nothing, and starts again'
    assert errors.count(text) == len(starts) - 1


@pytest.mark.parametrize('deaf', [(0, 1.0)], indirect=True)
def test_a_process_that_hears_nothing_any_more_says_so_and_starts_again(deaf):
    assert starts_until_it_runs(deaf)[0] == 'start 0\n'
    found = ports_of(deaf.pid)
    assert len(found) == PORTS
    for file in found:
        file.unlink()
    assert 'start ' in starts_until_it_runs(deaf)[0]
    deaf.send_signal(signal.SIGINT)
    _, errors = deaf.communicate(timeout=END_S)
    assert deaf.returncode == 0, errors
    text = 'shared-memory receive is stuck in this process: fast'
    # in the log, and as the reason of the start
    assert errors.count(text) == 2
    assert errors.count('has no file for 1 s, and starts again\n') == 1


@pytest.mark.slow
@pytest.mark.parametrize('deaf', [(0, 4.0)], indirect=True)
def test_a_process_that_was_stopped_is_not_taken_for_one_that_hears_nothing(deaf):
    assert starts_until_it_runs(deaf)[0] == 'start 0\n'
    away = {file: file.with_suffix('.away') for file in ports_of(deaf.pid)}
    deaf.send_signal(signal.SIGSTOP)
    # others take it for dead meanwhile; its first look finds no file
    time.sleep(5.0)
    for file, aside in away.items():
        file.rename(aside)
    deaf.send_signal(signal.SIGCONT)
    time.sleep(1.0)
    for file, aside in away.items():
        aside.rename(file)
    time.sleep(1.0)
    deaf.send_signal(signal.SIGINT)
    printed, errors = deaf.communicate(timeout=END_S)
    assert (deaf.returncode, printed) == (0, ''), errors
    assert 'stuck' not in errors
