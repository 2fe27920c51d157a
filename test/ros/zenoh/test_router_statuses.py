# SPDX-License-Identifier: Apache-2.0
"""The statuses of a server over Zenoh reach the router in their order; rclpy's tasks have none."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
from rclpy.serialization import serialize_message

from lerobot_serve.router.ros.zenoh_replicas import ZenohReplicas
from lerobot_serve_interfaces.msg import ServerStatus

POLICIES = ['act@1', 'act@2', 'act@3']


@pytest.mark.parametrize('order', [1, -1], ids=['oldest first', 'newest first'])
def test_the_newest_status_counts_in_whatever_order_tasks_run(order):
    tasks: list[Callable[[], None]] = []
    seen: list[tuple[str, str]] = []
    replicas = ZenohReplicas(
        SimpleNamespace(),
        (),
        '/router',
        run=tasks.append,
        on_drop=lambda _: None,
        lifespan_s=1.0,
    )
    for policy in POLICIES:
        replicas._on_status(
            lambda server, status: seen.append((server, status.policy)),
            'zenoh:/b1',
            '',
            serialize_message(ServerStatus(policy=policy)),
        )
    assert seen == [], 'statuses belong into the executor'
    for task in tasks[::order]:
        task()
    assert seen == [('zenoh:/b1', policy) for policy in POLICIES]
