# SPDX-License-Identifier: Apache-2.0
"""
Nodes under a service manager: they report that they run, report no more when they stand still or
when their control loop does, and leave the stacks of their threads when they are ended for that.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from support.paths import REPOSITORY
from support.waiting import wait_until

from lerobot_serve.tools.processes import executable_path

WATCHDOG_S = 3.0
LIMIT_S = 60.0
NODES = {
    'policy_server': ['policy_kind:=null', 'policy_path:=joints=6,chunk=9,cameras=,fps=30'],
    'edge_controller': [
        f'robot_file:={REPOSITORY}/config/robots/so101.yaml',
        'client_id:=robot_1',
    ],
    'policy_router': [],
}
# a node whose tick hangs once it is asked to
HANGS = """
import signal, sys, threading, time
from lerobot_serve.ros.node.steady_clock import SteadyClockNode
from lerobot_serve.ros.process import node_runtime
from lerobot_serve.telemetry.http_endpoint import HttpEndpoint
hangs, ticks = threading.Event(), [0]

def create(runtime):
    def tick():
        while not runtime.stop.wait(0.02):
            ticks[0] += 1
            while hangs.is_set():
                time.sleep(0.1)
    runtime.thread('tick', tick)
    runtime.heartbeats.add('tick', lambda: ticks[0])
    endpoint = HttpEndpoint(
        '127.0.0.1', 0, list, why_not_ready=str, why_not_alive=runtime.why_not_alive
    )
    runtime.on_close(endpoint.close)
    print(endpoint.port, flush=True)
    return SteadyClockNode('hangs', context=runtime.context)

signal.signal(signal.SIGUSR1, lambda *_: hangs.set())
signal.signal(signal.SIGUSR2, lambda *_: hangs.clear())
sys.exit(node_runtime.run(create, []))
"""


class Manager:
    """What systemd is to a service: a socket, and the messages that came."""

    def __init__(self, receiver: socket.socket) -> None:
        self._receiver = receiver
        self.states: list[str] = []

    def read(self, limit_s: float) -> str:
        """Return the next state; empty when none comes in time."""
        self._receiver.settimeout(max(limit_s, 0.001))
        try:
            state = self._receiver.recv(1000).decode()
        except TimeoutError:
            return ''
        self.states.append(state)
        return state

    def wait_for(self, state: str, limit_s: float = LIMIT_S) -> None:
        deadline_s = time.monotonic() + limit_s
        while (found := self.read(deadline_s - time.monotonic())) != state:
            assert found, f'{state} did not come; there were {self.states}'

    def clear(self) -> None:
        while self.read(0.0):
            pass


@pytest.fixture
def manager(tmp_path) -> Iterator[Manager]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / 'notify'))
        yield Manager(receiver)


@contextlib.contextmanager
def service(manager: Manager, command: list[str]) -> Iterator[subprocess.Popen[str]]:
    address = manager._receiver.getsockname()
    variables = {'NOTIFY_SOCKET': address, 'WATCHDOG_USEC': str(int(WATCHDOG_S * 1e6))}
    process = subprocess.Popen(
        command, env=os.environ | variables, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize('executable', NODES)
def test_a_node_reports_that_it_runs_goes_on_and_stops(manager, executable):
    parameters = (word for each in NODES[executable] for word in ('-p', each))
    command = [str(executable_path(executable)), '--ros-args', *parameters]
    with service(manager, command) as process:
        manager.wait_for('READY=1')
        for _ in range(3):
            manager.wait_for('WATCHDOG=1')
        process.send_signal(signal.SIGINT)
        manager.wait_for('STOPPING=1')
        assert process.wait(LIMIT_S) == 0
        assert manager.states[0] == 'READY=1'


@pytest.mark.slow
def test_a_process_that_is_stopped_reports_no_more_and_then_again(manager):
    with service(manager, [sys.executable, '-c', HANGS]) as process:
        manager.wait_for('WATCHDOG=1')
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.2)
        manager.clear()
        assert manager.read(2 * WATCHDOG_S) == ''
        process.send_signal(signal.SIGCONT)
        manager.wait_for('WATCHDOG=1')


@pytest.mark.slow
def test_a_tick_that_hangs_withholds_the_report_while_the_rest_goes_on(manager):
    with service(manager, [sys.executable, '-c', HANGS]) as process:
        manager.wait_for('WATCHDOG=1')
        process.send_signal(signal.SIGUSR1)
        # those of the time in which it may yet be slow
        deadline_s = time.monotonic() + LIMIT_S
        while manager.read(WATCHDOG_S):
            assert time.monotonic() < deadline_s, 'it reports on while its tick hangs'
        process.send_signal(signal.SIGUSR2)
        manager.wait_for('WATCHDOG=1')
        process.send_signal(signal.SIGUSR1)
        while manager.read(WATCHDOG_S):
            assert time.monotonic() < deadline_s, 'it reports on while its tick hangs'
        # as systemd does then
        process.send_signal(signal.SIGABRT)
        _, printed = process.communicate(timeout=LIMIT_S)
    assert process.returncode == -signal.SIGABRT
    assert 'standing still: tick. The service manager ends and restarts this process' in printed
    # the stack of the thread that hangs
    assert 'in tick' in printed


@pytest.mark.slow
def test_a_tick_that_hangs_fails_the_probe_of_a_kubelet_until_it_goes_on():
    process = subprocess.Popen([sys.executable, '-c', HANGS], stdout=subprocess.PIPE, text=True)
    try:
        url = f'http://127.0.0.1:{int(process.stdout.readline())}/healthz'
        # without a service manager, as in a container
        wait_until(lambda: answer_of(url) == (200, 'alive\n'), 'it is alive')
        process.send_signal(signal.SIGUSR1)
        wait_until(lambda: answer_of(url) == (503, 'standing still: tick\n'), 'it is not')
        answers = []

        def is_alive() -> bool:
            # again and again: a thread other than the main one may have received the first
            process.send_signal(signal.SIGUSR2)
            answers.append(answer_of(url))
            return answers[-1] == (200, 'alive\n')

        try:
            wait_until(is_alive, 'it is alive again')
        finally:
            print(f'the last answers: {answers[-3:]}')
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 0
    finally:
        process.kill()
        process.communicate()


def answer_of(url: str) -> tuple[int, str]:
    """Return status and text of a page."""
    try:
        with urlopen(url, timeout=LIMIT_S) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()
