# SPDX-License-Identifier: Apache-2.0
"""
A sender that is killed while it sends leaves a port of Fast DDS blocked, and its owner deaf: the
owner has it renewed.
"""

from __future__ import annotations

import os
import threading
import time

import pytest
from std_msgs.msg import UInt32
from support.middleware.blocked_port import block
from support.middleware.dead_port import process, SENDS, TOPIC
from support.waiting import wait_until

from lerobot_serve.ros.node.steady_clock import SteadyClockNode
from lerobot_serve.ros.process.node_runtime import NodeRuntime
from lerobot_serve.shared_memory.ports import deaf_processes, PortGuard, ports_of


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
