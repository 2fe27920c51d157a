# SPDX-License-Identifier: Apache-2.0
"""The statuses of a server over Zenoh reach the router in their order; rclpy's tasks have none."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from lerobot_serve.router.ros.replica_links import InOrder

POLICIES = ['act@1', 'act@2', 'act@3']


@pytest.mark.parametrize('order', [1, -1], ids=['oldest first', 'newest first'])
def test_the_newest_status_counts_in_whatever_order_tasks_run(order):
    tasks: list[Callable[[], None]] = []
    seen: list[str] = []
    run_in_executor = InOrder(tasks.append)
    for policy in POLICIES:
        run_in_executor(partial(seen.append, policy))
    assert seen == [], 'statuses belong into the executor'
    for task in tasks[::order]:
        task()
    assert seen == POLICIES
