# SPDX-License-Identifier: Apache-2.0
"""
Actions asked for from the executor's own thread, and the clients of actions built there.

The executor looks at a client that is not wholly built yet, and ends with an error. An answer that
arrives while another thread is still inside send_goal_async, get_result_async or
cancel_goal_async finds a future that rclpy's action client has not noted yet, and raises.
"""

from __future__ import annotations

from collections.abc import Callable
import threading
from typing import TypeVar

from rclpy.node import Node

T = TypeVar('T')
LIMIT_S = 30.0


def in_executor(node: Node, act: Callable[[], T]) -> T:
    """Return what `act` returns when the node's executor runs it."""
    ran = threading.Event()
    task = node.executor.create_task(act)
    task.add_done_callback(lambda _: ran.set())
    assert ran.wait(LIMIT_S), 'the executor does not spin'
    return task.result()
