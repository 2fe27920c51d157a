# SPDX-License-Identifier: Apache-2.0
"""
A process that is killed between two messages leaves a port that Fast DDS takes for sound: a node
that takes its number hears all the same, and so does a process without code of ours.

Ports belong to the machine: a node of another test may mark one first, so that only what is heard
can be asserted here. Without the marks each of these tests fails when it runs alone.
"""

from __future__ import annotations

import contextlib
import select
import subprocess
import time

import pytest
from std_msgs.msg import UInt32
from support.middleware.dead_port import HEARS, kill_between_messages, process, SENDS, TOPIC
from support.waiting import wait_until

from lerobot_serve.ros.node.steady_clock import SteadyClockNode
from lerobot_serve.ros.process import node_runtime
from lerobot_serve.ros.process.node_runtime import NodeRuntime

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
