# SPDX-License-Identifier: Apache-2.0
"""
A process that is killed between two messages leaves a port that Fast DDS takes for sound: a node
that takes its number hears all the same, and so does a process without code of ours.

Ports belong to the machine: a node of another test may mark one first, so that only what is heard
can be asserted here. Without the marks each of these tests fails when it runs alone.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import threading
import time

import pytest
from std_msgs.msg import UInt32
from support.middleware.blocked_port import block
from support.middleware.dead_port import HEARS, kill_between_messages, process, SENDS, TOPIC
from support.waiting import wait_until

from lerobot_serve.ros.node.steady_clock import SteadyClockNode
from lerobot_serve.ros.process import node_runtime
from lerobot_serve.ros.process.node_runtime import NodeRuntime
from lerobot_serve.shared_memory.ports import deaf_processes, PortGuard, ports_of

# discovery included
HEARD_S = 30.0


@pytest.fixture
def nodes():
    with contextlib.ExitStack() as stack:

        def start() -> NodeRuntime:
            runtime = NodeRuntime([])
            stack.callback(runtime.close)
            return runtime

        yield start


def hears(listener: subprocess.Popen[str], limit_s: float = HEARD_S) -> bool:
    """Return whether a process hears within the limit."""
    ready, _, _ = select.select([listener.stdout], [], [], limit_s)
    return bool(ready) and bool(listener.stdout.readline())


def killed_while_it_heard() -> list[str]:
    with process(HEARS) as victim:
        assert hears(victim)
        return [file.name for file in kill_between_messages(victim)]


def test_a_node_that_takes_the_number_hears(nodes):
    with process(SENDS):
        assert killed_while_it_heard()
        runtime = nodes()
        heard: list[int] = []
        node = SteadyClockNode('hears', context=runtime.context)
        node.create_subscription(UInt32, TOPIC, lambda message: heard.append(message.data), 10)
        runtime.add(node)
        runtime.start()
        wait_until(lambda: len(heard) > 5, 'the sender is heard', HEARD_S)


def test_a_process_without_our_code_hears_a_node_again(nodes, monkeypatch):
    monkeypatch.setattr(node_runtime, 'PORT_CHECK_S', 0.2)
    runtime = nodes()
    node = SteadyClockNode('sends', context=runtime.context)
    publisher = node.create_publisher(UInt32, TOPIC, 10)
    runtime.add(node)
    runtime.start()

    def send() -> None:
        while not runtime.stop.wait(0.005):
            publisher.publish(UInt32(data=1))

    runtime.thread('sends', send)
    with process(HEARS) as victim:
        assert hears(victim)
        # a check sees the port while its owner runs
        time.sleep(2 * node_runtime.CHECKS_PER_MAP * node_runtime.PORT_CHECK_S)
        kill_between_messages(victim)
    with process(HEARS) as successor:
        assert hears(successor)


# a sender that is killed while it sends leaves a port of Fast DDS blocked, and its owner deaf:
# the owner has it renewed


@pytest.fixture
def sender():
    with process(SENDS) as running:
        yield running


@pytest.fixture
def runtime():
    runtime = NodeRuntime([])
    yield runtime
    runtime.close()


def subscribed(runtime: NodeRuntime) -> list[int]:
    """Return what a started node hears of the sender, which grows."""
    heard: list[int] = []
    node = SteadyClockNode('hears', context=runtime.context)
    node.create_subscription(UInt32, TOPIC, lambda message: heard.append(message.data), 10)
    runtime.add(node)
    runtime.start()
    wait_until(lambda: len(heard) > 5, 'the sender is heard')
    return heard


@pytest.mark.slow
def test_a_node_that_a_killed_sender_made_deaf_hears_again(runtime, sender, capfd, monkeypatch):
    checks = threading.Event()
    check = PortGuard.check
    monkeypatch.setattr(PortGuard, 'check', lambda own: check(own) if checks.is_set() else [])
    heard = subscribed(runtime)
    # that of the data of topics, and that of discovery
    found = ports_of()
    assert len(found) >= 2
    for file, number in found.items():
        block(file, number)
    # Fast DDS does not help itself
    time.sleep(0.5)
    count = len(heard)
    time.sleep(3)
    assert len(heard) == count
    assert os.getpid() in deaf_processes()
    checks.set()
    wait_until(lambda: len(heard) > count + 100, 'the sender is heard again', 30)
    printed = capfd.readouterr().err
    assert 'was blocked: a process was killed while it sent to this one' in printed
